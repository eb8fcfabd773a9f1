"""Tests mirror the rooms: `tests/averaging/codec/` tests `averaging/codec/`.

The files, each built on those above it:

    kit/        what tests share: simulated networks, swarms of machines, real processes, pages
    dht/        one folder for each room of `dht`
    averaging/  likewise
    peer/       likewise
    dashboard/  likewise
    swarms/     whole swarms in virtual time: forks, liars, faults at random
    processes/  real processes on loopback, and the page in a browser
    benchmarks/ benchmarks measure what ships, and say so when they cannot
    fuzz/       decoders and commands under bytes that nobody expects
    repo/       the repository itself: layout and documents
    golden/     stored output; CONTRIBUTING.md says how it is made again
    corpus/     inputs that the fuzzer ever found

    conftest.py  switches, hypothesis without chance or deadlines, signals that reach every child
"""
