"""`peer demo`: a local swarm of real processes that trains on real text.

The files, each built on those above it:

    kept_command.py  a command that leaves when the demo's process is gone
    figures.py       the peers' work from their event logs, and checks of a working swarm (pure except for reading)
    demo_view.py     a table that changes in place, or lines in a pipe
    swarm.py         the processes, and their cleanup
    demo.py          the sequence of starts, a kill and a late join, and the report
"""
