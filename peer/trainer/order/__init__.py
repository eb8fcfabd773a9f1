"""Which blocks of the data a peer reads next.

The files, each built on those above it:

    positions.py    where blocks begin when each peer draws for itself
    block_order.py  drawn, or each block once per epoch over the swarm
"""
