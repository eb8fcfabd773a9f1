"""The round as state machines without I/O: events in, effects out, time as an argument. Pure.

The files, each built on those above it:

    round_facts.py          what happened in a round, with its sentence; what an exchange reports to its owner
    presence.py             which members count: those that have been there
    machine_events.py       what a round machine is told (events) and what it asks for (effects)
    duration_statistics.py  deadlines learned from what was seen, per link
    waits.py                how long a member waits for others, from its pace and the lines
    line_budget.py          how much of a contribution a slow line brings in time
    shard_plan.py           which member reduces which shard
    attempt.py              what a member knows of the attempt at a round that it is in, and of those past that round
    leader_ranking.py       in which order trainers may lead a round, and which of many contribute to it
    passing_on.py           which member passes plans, commits and means on to which others
    leader.py               the leader's half: offers, the start, results, the commit
    reducer.py              the reducer's half: whose contributions are waited for, and how long
    round_machine.py        all rounds of one fragment at one peer: member, leader and reducer in one

Source: Decoupled DiLoCo (arXiv 2604.21428) for the leader's grace window.
"""
