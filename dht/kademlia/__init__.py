"""`HivemindStore`: the port RecordStore over hivemind's Kademlia, with guards around what it lets in.

The files, each built on those above it:

    bounded_storage.py  what a member keeps for others, within limits
    dht_guards.py       who may speak DHT with us, and which records are let in
    rpc.py              how DHTNode's calls travel: through the daemon, or over streams of a Libp2pHost
    dht_node.py         hivemind's DHTNode on a host, over all lives of the daemon
    dht_store.py        HivemindStore
    census.py           every peer record of a run, for those who look once

Source: Kademlia (Maymounkov and Mazieres, 2002).
"""
