"""`HivemindStore`: the port RecordStore over hivemind's Kademlia, with guards around calls and records.

The files, each built on those above it:

    bounded_storage.py  bounded storage of records that a member keeps for others
    dht_guards.py       guards that decide which peers may call this DHT member, and which records it accepts
    rpc.py              transport of DHTNode's calls: through the daemon, or over streams of a Libp2pHost
    dht_node.py         hivemind's DHTNode on a host, rebuilt after each restart of the daemon
    dht_store.py        HivemindStore
    census.py           all peer records of a run, for single queries

Source: Kademlia (Maymounkov and Mazieres, 2002).
"""
