"""Rounds on two levels, for large swarms and for sites: state machines without I/O. Pure.

The files, each built on those above it:

    formation.py   who is in which cell, who averages which slice across cells, and in which codec
    seat.py        in which cell a peer is, and how its rounds differ there
    top_leader.py  the round above the cells: top leader, cell leaders, owners of slices
    machine.py     both levels as one state machine
"""
