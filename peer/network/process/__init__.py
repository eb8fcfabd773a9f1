"""The network process itself: how it starts, what it is told, what runs in it, and who watches over it.

The files, each built on those above it:

    event_loop.py    which event loop carries the traffic
    spec.py          what a network side is told when it starts
    child.py         starts the process, before its owner has loaded torch
    restarts.py      when a child that died is started again (pure)
    network_side.py  from a run id and an address to a running node
    main.py          the process: `python -m peer.network.process.main`
    supervisor.py    the trainer's side: feeds the process, watches it, starts it again
"""
