"""Real members that benchmarks start, and what their processes take.

processes.py       CPU and memory of a process and its descendants
round_member.py    a member of `bench_round`: host, links and exchange, without a trainer
session_member.py  a whole peer that trains a loop of the benchmark's
real_swarm.py      a run and peers of `session_member.py`
"""
