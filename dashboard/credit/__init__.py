"""The members that a signed commit credits, whatever the order in which commits come. Pure.

The files, each built on those above it:

    credited_members.py        whom one signed commit credits, and the bytes that it moved
    heaviest_commit_chains.py  all signed commits that are known, and which of them count
    work_log.py                the commits that name a machine, and a person's curve of work
    contributor_ledger.py      who is credited with what

The rule itself is `averaging/signing/commit_credit.py`, the same that `peer receipts verify` follows.
"""
