"""What is exchanged and how it is combined: fragments of the model, rounds, anchors. Knows no trainer.

The files, each built on those above it:

    arrays.py         types of the arrays that values and codes are in (pure)
    finite_values.py  whether all values of an array are finite (pure)
    rules.py          the number of the rules, and what belongs to them (pure)

The rooms, from the bottom up:

    codec/     float32 values to few bits and back
    wire/      messages as values, and their bytes (pure)
    signing/   who signs what, what a commit proves, credit (pure)
    outer/     the mathematics of one fragment (pure)
    lanes/     streams to every remote, and the rate at which they are filled
    rounds/    the flat round as state machines without I/O (pure)
    trust/     whom to believe: blame, leaders, speeds, wrong means (pure)
    fragment/  what one fragment holds at one peer while its rounds run
    exchange/  the async shell: performs what the machines ask for
    transfer/  anchors for those who join or return
"""

# A part of murmuration-swarm: peer/import_path.py looks for this line.
