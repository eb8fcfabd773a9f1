"""The round as state machines without I/O: events in, effects out, time as an argument. Pure.

The files, each built on those above it:

    round_facts.py          facts about rounds, with their sentences; reports of an exchange to its owner
    machine_events.py       inputs (events) and outputs (effects) of a round machine
    presence.py             which members count in rounds, judged by their past participation
    duration_statistics.py  deadlines learned from past durations, for each link
    waits.py                how long a member waits for others, from its pace and the lines
    line_budget.py          which shards of a contribution a slow line can send in time
    shard_plan.py           which member reduces which shard
    attempt.py              a member's view of its present attempt at a round, and of peers at later versions
    leader_ranking.py       the order in which trainers may lead a round, and which of many contribute
    passing_on.py           which members pass plans, commits and means on to which others
    leader.py               the leader's half: offers, start, results, commit
    reducer.py              the reducer's half: how long it waits for each contribution
    round_machine.py        all rounds of one fragment at one peer: member, leader and reducer in one

Source: Decoupled DiLoCo (arXiv 2604.21428) for the leader's grace window.
"""
