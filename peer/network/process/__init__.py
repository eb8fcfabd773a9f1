"""The network process itself: its start, its parts, and its supervisor.

The files, each built on those above it:

    child_start.py     starts the process before the trainer's process has loaded torch
    run_files.py       checks or fetches checks or fetches the files of a run before its node begins
    record_upkeep.py   the run's record: republishes it, and adopts later revisions
    panel_looks.py     the view of the swarm for the panel
    network_side.py    builds a running node from a run id and an address
    main.py            the process: `python -m peer.network.process.main`
    supervisor.py      the trainer's side: feeds, watches and restarts the process
"""
