"""Anchors of other members: chooses donors, finds the anchor that enough members confirm, and fetches it.

The files, each built on those above it:

    donors.py           the members to ask, their order, and the members to avoid
    claimed_anchors.py  the evidence for an anchor that a member claims
    donor_agreement.py  chooses among the anchors that donors offer
    fetcher.py          fetches the swarm's state, fragment by fragment
"""
