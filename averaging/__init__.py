"""Averaging between peers: fragments of the model, rounds and anchors. Does not depend on the trainer.

The files, each built on those above it:

    arrays.py         array types of values and codes (pure)
    finite_values.py  whether all values of an array are finite (pure)
    rules.py          the version number of the rules, and which modules it covers (pure)

The rooms, from the bottom up:

    codec/     encodes float32 values in a few bits, and decodes them
    wire/      messages as Python values and as bytes (pure)
    signing/   signatures on commits, and the credit that commits prove (pure)
    outer/     the mathematics of one fragment (pure)
    lanes/     streams to each remote, and the rate at which this peer fills them
    rounds/    the flat round as state machines without I/O (pure)
    trust/     which peers and claims to trust: blame, leaders, speeds, wrong means (pure)
    fragment/  state and memory of one fragment at one peer during rounds
    exchange/  the async shell, which performs the effects of the state machines
    transfer/  sends anchors to peers that join or return
"""

# A part of murmuration-swarm: peer/import_path.py looks for this line.
