"""Signatures about a round, and the facts that they prove: commits, receipts, credit. Pure.

The files, each built on those above it:

    round_signatures.py  statements that members sign, and checks of signatures
    commit_credit.py     tokens of each member in signed commits, and the choice between two histories
    receipt_file.py      signed commits as a file that anyone can check
    commit_log.py        the signed commits that a member keeps for collectors of proofs
    commit_chains.py     signed commits that lead from one anchor to another
"""
