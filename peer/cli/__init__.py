"""The command line: arguments in, exit code out. Each command imports its libraries when it runs.

    usage/          help, mistakes and exit codes of the command line
    app.py          the `peer` command
    options.py      flags generated from the fields of PeerConfig, and flags that several commands share
    owned.py        the run in its owner's folder, for the commands of an owner
    named_model.py  the model for export, sample and evaluate

Each command has a file of its name, which defines `app`:

    dashboard.py    `peer dashboard`
    data.py         `peer data`
    demo.py         `peer demo`
    doctor.py       `peer doctor`
    evaluate.py     `peer evaluate`
    export.py       `peer export`
    forget.py       `peer forget`
    init.py         `peer init`
    invite.py       `peer invite`
    join.py         `peer join`
    key.py          `peer key`
    logs.py         `peer logs`
    manifest.py     `peer manifest`
    members.py      `peer members`
    note.py         `peer note`
    open.py         `peer open`
    plan.py         `peer plan`
    profile.py      `peer profile`
    receipts.py     `peer receipts`
    revoke.py       `peer revoke`
    runs.py         `peer runs`
    sample.py       `peer sample`
    seed.py         `peer seed`
    service.py      `peer service`
    status.py       `peer status`
    stop.py         `peer stop`
"""
