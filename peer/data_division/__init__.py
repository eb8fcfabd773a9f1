"""Read each block of the data once per epoch over the swarm: the choice of the next block. Pure; no torch, no network.

A keyed permutation, the same for all peers, orders the blocks of an epoch, which are divided into `NUM_UNITS` units.
A peer reads one unit after another. Rendezvous hashing (Thaler and Ravishankar, 1998) ranks all live peers for every
unit. So each peer has its own units without communication, and the units of a peer that has left pass to others. Peer
records list the unit that a peer reads and its finished units. So a peer skips the units of others, and takes over
units that remain.

A peer begins with the units that are most certainly its own, because at first it does not know of others. It takes
units from the end of others' shares, while they proceed from the front. A record is some seconds old. So a peer leaves
each other reader as many of its next units as that reader read between its last two records. Two peers that take the
same unit at once see this in each other's records, and the peer of lower rank drops the unit. When no unit is free, a
peer continues with the next epoch.

Records are trusted only for this choice. A false record that reports every unit as finished makes others start the
next epoch, repeatedly. They then read in a new permutation each time, no worse than sampling at random.

The files, each built on those above it:

    permutation.py      a permutation of any size by a key
    others_reading.py   the units that others read, and the resulting ranks
    unit_choice.py      the unit and epoch that one peer reads next
    block_order.py      the positions of its blocks in the peer's own data
"""
