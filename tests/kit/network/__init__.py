"""Networks, lines and records between peers.

The files, each built on those above it:

    memory_networks.py  small simulated networks
    limited_host.py     a simulated host with its owner's upload limit
    paced_line.py       a home line in virtual time
    network_spaces.py   network namespaces: a line between two machines that can be cut
    level_views.py      peers that publish and read by levels, over dictionaries
    byte_streams.py     byte streams over sockets, as those to the daemon
    link_pair.py        two peers joined by links over a network in memory
    signed_records.py   signed records of peers, and of a run
"""
