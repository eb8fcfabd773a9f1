"""One simulator: the real node and trainer of many peers in one process, under virtual time.

The rooms, from the bottom up:

    network/      hosts, lines and records of a simulated network
    scenarios/    what happens in a simulation: specification, scenario files, every peer's life
    adversaries/  peers that lie, flood and claim
    books/        where all work is, and what every fragment may do and hold

The simulator:

    virtual_sleep.py  simulated processes that sleep and wake
    virtual_time.py   an asyncio loop that jumps to the next timer
    tampering.py      messages of rounds that come late, or twice
    workload.py       what simulated peers learn
    peer.py           one simulated volunteer
    checks.py         what must hold when a swarm has settled
    trace.py          what happened, folded from events; the trace hash (pure)
    result.py         what a simulation shows, as values and text (pure)
    simulation.py     runs one simulation
    many_seeds.py     many random swarms in several processes
    __main__.py       from the flags of `python -m tests.simulator` to its summary
"""
