"""Signatures about a round, and what can be proved with them: commits, receipts, credit. Pure.

The files, each built on those above it:

    round_signatures.py  what each member signs, and what a signature proves
    commit_credit.py     whose tokens are in signed commits, and which of two histories counts
    receipt_file.py      signed commits as a file that anybody can check
    commit_log.py        the signed commits that a member keeps for collectors of proofs
    commit_chains.py     signed commits that lead from one anchor to another
"""
