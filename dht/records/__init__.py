"""Signed, expiring statements, and the view of the swarm that is folded from them. Pure.

The files, each built on those above it:

    lineages.py          whose anchor counts: the one rule
    key_levels.py        under which keys peer records stand, and which of them one look reads
    evaluation.py        Evaluation: a validation loss and the version that has it
    data_reading.py      which data a peer reads
    signed_envelopes.py  what a key signs, in one form of bytes
    signature_cache.py   what was signed well is not checked twice
    signed_manifest.py   RunRecord: what the owner of a run says of it
    peer_record.py       PeerRecord: what a peer says of itself
    profiles.py          what a person with machines says in public
    swarm_view.py        SwarmView: the fold of all valid records at one time
"""
