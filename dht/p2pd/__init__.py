"""`P2pdHost`: the port Host over the libp2p daemon of hivemind. It carries the bulk data between peers.

The files, each built on those above it:

    socket_directory.py     the private folder of the daemon's sockets
    lazy_hivemind.py        parts of hivemind (the daemon's messages, the DHT) without the rest of it
    control.py              the daemon's control protocol
    announced_addresses.py  addresses of odd ranges, which others pass on as names alone
    daemon.py               one run of the daemon: its flags, its start, its end
    supervisor.py           keeps the daemon alive, with the same key and port
    congestion_control.py   which TCP congestion control the kernel uses
    host.py                 P2pdHost
    fresh_dial.py           dials a peer from a daemon of its own, as somebody would who never met it
    own_relay_trial.py      tries whether the daemon relays, and how much
"""
