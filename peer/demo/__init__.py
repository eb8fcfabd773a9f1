"""`peer demo`: a local swarm of real processes that trains on real text.

The files, each built on those above it:

    kept_command.py  a command that leaves when the demo's process has gone
    figures.py       what peers did, folded from their event logs, and what a working swarm shows (pure but for reading)
    demo_view.py     one table that changes in place, or lines in a pipe
    swarm.py         the processes, and how none of them is left
    demo.py          the play: who starts, who is killed, who comes late, and the report
"""
