"""The network process itself: how it starts, what runs in it, and what watches over it.

The files, each built on those above it:

    child_start.py     starts the process, before its owner has loaded torch
    run_files.py       the files of a run before its node begins
    record_upkeep.py   the run's record: published again, and replaced by later revisions
    panel_looks.py     what the person at the panel sees of the others
    network_side.py    from a run id and an address to a running node
    main.py            the process: `python -m peer.network.process.main`
    supervisor.py      the trainer's side: feeds the process, watches it, starts it again
"""
