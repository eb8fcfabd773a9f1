"""Anchors of others: whom to ask, which anchor enough members confirm, and how to fetch that one.

The files, each built on those above it:

    donors.py           whom to ask, in which order, and whom to avoid
    claimed_anchors.py  what stands behind an anchor that a member claims
    donor_agreement.py  which of the anchors that donors offer is fetched
    fetcher.py          fetches what the swarm has, fragment by fragment
"""
