"""Real members that benchmarks start, and what their processes take.

The files, each built on those above it:

    processes.py       CPU and memory of a process and its descendants
    member_process.py  a member in a process of its own, which takes orders in lines of JSON
    round_member.py    a member of `bench_round`: host, links and exchange, without a trainer
    session_member.py  a whole peer that trains a loop of the benchmark's
    real_swarm.py      a run and peers of `session_member.py`
"""
