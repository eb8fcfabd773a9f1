"""Which peers to believe: speeds that they claim, bad input and its consequences, leaders, wrong means. Pure.

The files, each built on those above it:

    announced_speeds.py  the fastest speed that each peer announced lately
    believed_speeds.py   how fast a peer counts that announces any speed, or none
    exclusions.py        who sent bad input, and for how long that peer is excluded
    leader_trust.py      whose commits are followed among strangers, and leaders that exclude members
    claim_guard.py       which claims of others are believed
    mean_checks.py       which means of a commit look wrong, and which are wrong beside their contributions
    audit_budgets.py     how many means one peer may look at
"""
