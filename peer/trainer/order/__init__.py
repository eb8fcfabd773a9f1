"""Which blocks of the data a peer reads next.

The files, each built on those above it:

    random_positions.py  where blocks begin when each peer draws for itself
    block_order.py       the order of blocks: drawn, or each once per epoch over the swarm
"""
