"""Credit for members from signed commits, in any order of the commits. Pure.

The files, each built on those above it:

    credited_members.py        the members that one signed commit credits, and its transferred bytes
    heaviest_commit_chains.py  all known signed commits, and which of them count
    work_log.py                the commits of a machine, and a person's curve of work
    contributor_ledger.py      credit of each contributor

`averaging/signing/commit_credit.py` defines the rule, which `peer receipts verify` uses too.
"""
