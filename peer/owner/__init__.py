"""What the owner's key is for: a new run, invites, revocations, revisions.

The files, each built on those above it:

    custom_module.py     what a custom run says of its owner's module: names, running statistics, what is frozen
    example_run.py       a run.toml to begin with
    new_run.py           `peer init`
    owned_run.py         a run in its owner's hands: invites, revocations, signed revisions
    owner_connection.py  a connection of the owner to members
    revision_start.py    when a revision may begin, by where the run is
    publish.py           a signed revision given to the members
    member_list.py       `peer members`
"""
