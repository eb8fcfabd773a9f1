"""Rounds on two levels, for large swarms and for sites: state machines without I/O. Pure.

The files, each built on those above it:

    formation.py   who is in which cell, who averages which slice across cells, and in which codec
    own_cell.py    in which cell a peer is, and who is in the others
    top_leader.py  the round above the cells: top leader, cell leaders, owners of slices
    cell_scope.py  both levels at one peer: its cell's part, and what it does above
"""
