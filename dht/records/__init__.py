"""Signed, expiring records, and the view of the swarm computed from them. Pure.

The files, each built on those above it:

    lineages.py          the rule that decides which anchor counts
    key_levels.py        the DHT keys of peer records, and which of them each lookup reads
    evaluation.py        Evaluation: a validation loss and its version
    data_reading.py      the data that a peer reads
    signed_envelopes.py  signed content of a key, in canonical bytes
    signature_cache.py   cache of valid signatures
    signed_manifest.py   RunRecord: the signed manifest of a run
    peer_record.py       PeerRecord: a peer's signed record of itself
    profiles.py          public profile of a contributor with any number of machines
    swarm_view.py        SwarmView: combination of all valid records at one time
"""
