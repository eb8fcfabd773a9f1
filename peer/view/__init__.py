"""Figures of a run's progress and quality that one lying member cannot change. Pure.

The files, each built on those above it:

    run_clock.py  a run's progress, its expected arrival, and whether it has stalled
    run_view.py  the figures of a run, from records and signed work
    own_view.py  the figures of one peer, from its own events
    swarm_seen.py  ranks and names of the other members, as one peer sees them
"""
