"""Each block of the data once per epoch over the swarm: who reads what next. Pure; no torch, no network.

The blocks of an epoch lie in an order that a keyed permutation gives, the same for everybody, and are divided into
`NUM_UNITS` units. A peer takes one unit after the other. Rendezvous hashing (Thaler and Ravishankar, 1998) ranks all
live peers for every unit. So each peer has units of its own without a word, and those of a peer that has gone fall to
others. Peer records say what is read and what is done. So a peer skips what others have, and takes over what is left.
It begins with the units that are most surely its own, for at first it has not heard of others. It takes from the
end of others' shares, while they go on from the front. A record is some seconds old. So a peer leaves each other reader
as many of its next units as that one read between its last two records. Two who take one unit at once see it in
each other's records, and the one of lower rank lets go. When no unit is free, a peer goes on to the next epoch.

Records are believed for this choice alone. A liar that says that all is done makes others go on to the next epoch,
again and again. Then they read in a new permutation each time, no worse than if each drew at random.

The files, each built on those above it:

    permutation.py     a permutation of any size by a key
    others_reading.py  what others read, and how that ranks the units
    unit_choice.py     which unit of which epoch one peer reads next
    block_order.py     the positions of its blocks in the peer's own data
"""
