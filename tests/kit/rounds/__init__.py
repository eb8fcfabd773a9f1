"""Swarms of exchanges, and stages for parts of a round.

The files, each built on those above it:

    replicas.py          what reducers and members do with arrays, without a network
    exchange_swarm.py    exchanges over a simulated network, in virtual time
    donor_scene.py       donors that serve states, and a joiner
    guard_scene.py       a guard, and offers and commits for it to judge
"""
