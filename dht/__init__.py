"""WHO is there and how to reach them. Knows nothing of tensors.

Map of the package, from the bottom up::

    errors.py        the error tree, drawn once
    host.py          ports: Host and Stream
    dht/records/key_levels.py        under which keys peer records stand, and which of them a look reads (pure)
    store.py         port: RecordStore
    dht/identity/keys.py      key file, PeerId, sign, verify, run ids that certify themselves
    fields.py        strict checks of single values from the wire (pure)
    dht/records/signed_records.py       signed, expiring PeerRecord and RunRecord (pure)
    dht/kademlia/census.py        every peer record of a run, for those who look once
    dht/records/swarm_view.py         SwarmView: what one peer believes at time `now` (pure)
    dht/admission/hello.py        the first frame of every stream: hello, welcome, refusal (pure)
    dht/memory/lines.py simulated lines and streams: rates, latency, back-pressure
    dht/memory/host.py   MemoryNetwork, MemoryHost: simulated networks, for tests and the simulator
    dht/memory/store.py  MemoryStore: records in a shared dictionary
    dht/p2pd/host.py     Host over hivemind's libp2p daemon; the bulk data plane
    dht/pylibp2p/host.py   Host in pure Python over py-libp2p; observers
    dht/kademlia/store.py  RecordStore over hivemind's DHTNode, on either host
    dht/observer/network.py  a host and a store for somebody who only looks

Imports inside the package go upwards in this list only; `averaging` and `peer` build on it.

Sources: Kademlia (Maymounkov and Mazieres, 2002) for the lookup under the store; Ed25519 (RFC 8032) for every
signature; the libp2p peer id specification for the text form of a public key.
"""
