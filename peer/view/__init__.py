"""Where a run is and how good it is, in figures that one lying member cannot move. Pure.

The files, each built on those above it:

    run_clock.py  where a run stands, when it gets to a goal, whether it has stalled
    run_view.py  the figures of a run, from records and signed work
    own_view.py  the figures of one peer, from its own events
    swarm_seen.py  ranks and names of the other members, as one peer sees them
"""
