"""WHO is there and how to reach them. Knows nothing of tensors.

Map of the package, from the bottom up::

    errors.py        the error tree, drawn once
    host.py          ports: Host and Stream
    levels.py        under which keys peer records stand, and which of them a look reads (pure)
    store.py         port: RecordStore
    identity.py      key file, PeerId, sign, verify, run ids that certify themselves
    fields.py        strict checks of single values from the wire (pure)
    records.py       signed, expiring PeerRecord and RunRecord (pure)
    census.py        every peer record of a run, for those who look once
    swarm.py         SwarmView: what one peer believes at time `now` (pure)
    access.py        the first frame of every stream: hello, welcome, refusal (pure)
    memory_stream.py simulated lines and streams: rates, latency, back-pressure
    memory_host.py   MemoryNetwork, MemoryHost: simulated networks, for tests and the simulator
    memory_store.py  MemoryStore: records in a shared dictionary
    p2pd_host.py     Host over hivemind's libp2p daemon; the bulk data plane
    libp2p_host.py   Host in pure Python over py-libp2p; observers
    hivemind_store.py  RecordStore over hivemind's DHTNode, on either host
    observer_network.py  a host and a store for somebody who only looks

Imports inside the package go upwards in this list only; `averaging` and `peer` build on it.

Sources: Kademlia (Maymounkov and Mazieres, 2002) for the lookup under the store; Ed25519 (RFC 8032) for every
signature; the libp2p peer id specification for the text form of a public key.
"""
