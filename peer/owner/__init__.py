"""Use of the owner's key: creating a run, invites, revocations and revisions.

The files, each built on those above it:

    custom_module.py     checks on the module of a custom run, and its manifest fields
    example_run.py       an example run.toml
    new_run.py           `peer init`
    owned_run.py         a run whose owner key is here: invites, revocations, signed revisions
    owner_connection.py  the owner's connection to members
    revision_start.py    the round at which a revision may start
    publish.py           sending a signed revision to the members
    member_list.py       `peer members`
"""
