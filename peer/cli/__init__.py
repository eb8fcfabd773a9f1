"""The command line: arguments in, exit code out, nothing else. Commands import what they need when they run.

The rooms below it, and the files, each built on those above it:

    usage/                          how the command line speaks: help, mistakes, exit codes
    arguments/                      what commands are given: the run that is meant, flags that several share
    init_join_seed.py               init, join, seed
    owner.py                        key, invite, revoke, members, manifest
    data.py                         data tokenizer, data prepare
    status_and_dashboard.py         status, dashboard
    doctor.py                       doctor
    export.py                       export, sample, evaluate
    receipts.py                     receipts
    profile.py                      profile
    demo_plan.py                    demo, plan
    service_files.py                what keeps a peer running without a terminal (pure)
    runs_open_stop_logs_service.py  runs, open, stop, logs, service
    app.py                          the `peer` command
"""
