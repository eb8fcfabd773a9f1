"""`python -m benchmarks.convergence`: simulated swarms with other rules, compared by their losses.

The files, each built on those above it:

    arms.py     what may differ between two arms, and what both have in common
    liars.py    what a lying peer of an arm sends
    replica.py  the replicas of all peers, stepped together
    swarm.py    one arm: replicas, fragments and their rounds
"""
