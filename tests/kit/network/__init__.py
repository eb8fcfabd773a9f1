"""Networks, lines and records between peers.

The files, each built on those above it:

    memory_networks.py  small simulated networks
    network_spaces.py   network namespaces: a line between two machines that can be cut
    byte_streams.py     byte streams over sockets, as those to the daemon
    link_pair.py        two peers joined by links over a network in memory
    signed_records.py   signed records of peers, and of a run
    dht_members.py      members of a DHT on loopback
"""
