"""Chaos runs: random faults, and the invariants that hold all the same.

The files, each built on those above it:

    scenario.py          what goes wrong: a pure function of the seed
    ledger.py            every lineage of anchors, and where each peer's work went
    free_records.py      many keys of one host: records that cost nothing, and commits of each key alone
    hostility.py         hostile members, with values at and beyond every limit
    liars.py             what a lying peer does beside taking part
    peer.py              one peer: the real exchange, links, state server and fetcher
    checks.py            the invariants
    world.py             one run, looked at after every event
    simulation.py        random faults for whole simulated nodes and trainers
    hostile_scenario.py  a scenario with hostile peers of one kind
    record_pairs.py      small swarms without faults, with and without free records
    record_storm.py      whole simulated nodes beside hosts that publish free records
"""
