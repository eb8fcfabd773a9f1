"""Which peers and claims to trust: announced speeds, bad input and its consequences, leaders, wrong means. Pure.

The files, each built on those above it:

    announced_speeds.py  the fastest speed that each peer announced recently
    believed_speeds.py   the speed that a peer counts with, whether it announces one or not
    exclusions.py        bad input of each peer, and the exclusions that follow
    leader_trust.py      which commits to follow among strangers, and leaders that exclude members
    claim_guard.py       which claims of other peers to believe
    mean_checks.py       means of a commit that look wrong, or do not match their contributions
    audit_budgets.py     how many means one peer may audit
"""
