"""Discovery of peers and connections to them. Does not depend on tensors.

The rooms, from the bottom up:

    ground/     errors, ports, checks, quantities, files: every room of every package may import it
    identity/   keys, PeerIds, run ids, addresses
    streams/    frames on a connection, limits of rate and memory
    records/    signed statements, and the view of the swarm that follows from them (pure)
    admission/  which peers may open streams (pure)
    p2pd/       Host over hivemind's Go daemon: the data plane of peers
    pylibp2p/   Host in pure Python over py-libp2p, for observers
    kademlia/   RecordStore over hivemind's DHTNode
    observer/   host and store of an observer

Sources: Kademlia (Maymounkov and Mazieres, 2002) for the lookup under the store. Ed25519 (RFC 8032) for every
signature. The libp2p peer id specification for the text form of a public key.
"""

# A part of murmuration-swarm: peer/import_path.py looks for this line.
