"""A peer's identity and addresses: keys, PeerIds, signatures, run ids, multiaddrs.

The files, each built on those above it:

    keys.py       key file, PeerId, signatures, run ids that certify themselves
    multiaddr.py  addresses as text and as bytes (pure)
    join_link.py  a run and its addresses as one link (pure)
    speakable.py  pronounceable names for keys without a name (pure)

Sources: Ed25519 (RFC 8032); the libp2p specifications of peer ids and of multiaddrs.
"""
