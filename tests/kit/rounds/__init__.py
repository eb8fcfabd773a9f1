"""Swarms of round machines and of exchanges.

The files, each built on those above it:

    replicas.py          what reducers and members do with arrays, without a network
    round_swarm.py       round machines joined by queues
    exchange_swarm.py    exchanges over a simulated network, in virtual time
    memory_files.py      files of a run that a donor gives away
    donor_scene.py       donors that serve states, and a joiner
    guard_scene.py       a guard, and offers and commits for it to judge
"""
