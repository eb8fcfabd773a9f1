"""What the owner's key is for: a new run, invites, revocations, revisions.

The files, each built on those above it:

    own_module.py      what a custom run says of its owner's module: names, running statistics, what is frozen
    example_run.py     a run.toml to begin with
    new_run.py         `peer init`
    owned_run.py       a run in its owner's hands: invites, revocations, signed revisions
    publish.py         the owner's errands in the network
    revision_start.py  where the run is, before the owner signs when something begins
    member_list.py     `peer members`
"""
