"""`P2pdHost`: the port Host over hivemind's libp2p daemon, which carries the bulk data between peers.

The files, each built on those above it:

    socket_directory.py     the private folder of the daemon's sockets
    lazy_hivemind.py        parts of hivemind (the daemon's messages, the DHT) without the rest of it
    control.py              the daemon's control protocol
    announced_addresses.py  addresses of special ranges, which must be announced as names
    daemon.py               one run of the daemon: its flags, its start, its end
    supervisor.py           keeps the daemon alive, with the same key and port
    congestion_control.py   reads the kernel's TCP congestion control
    host.py                 P2pdHost
    fresh_dial.py           dials a peer from a separate daemon, like a stranger
    own_relay_trial.py      tests whether the daemon relays, and how much
"""
