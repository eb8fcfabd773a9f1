"""The command line: arguments in, exit code out, nothing else. Commands import what they need when they run.

The files, each built on those above it:

    exit_codes.py     exit codes; one sentence in place of a traceback
    named_run.py      which run is meant: id, page, link, or a name known here
    options.py        flags made from the fields of PeerConfig, and those that several commands share
    training.py       init, join, seed
    owner.py          key, invite, revoke, members, manifest
    data.py           data tokenizer, data prepare
    watching.py       status, dashboard
    doctor.py         doctor
    export.py         export, sample, evaluate
    receipts.py       receipts
    profile.py        profile
    trying.py         demo, plan, simulate
    app.py            the `peer` command, made of the others
"""
