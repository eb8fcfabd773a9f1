"""Books kept beside whole simulated peers: where all work is, and what every fragment may do and hold.

The files, each built on those above it:

    ledger.py   every lineage of anchors, and where each peer's work went
    audited.py  the product's state, machine and store of a fragment, with books beside them
    books.py    the invariants that are checked after every event of a round
"""
