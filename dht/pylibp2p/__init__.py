"""`Libp2pHost`: the port Host in pure Python, without a daemon or a child process, for observers.

The files, each built on those above it:

    messages.py         identify and FIND_NODE messages of libp2p (pure)
    noise_handshake.py  authenticated channel over TCP: multistream-select, then py-libp2p's Noise
    yamux.py            many streams over one channel, within limits
    connections.py      the live connections: dialled, counted, pruned, closed
    host.py             Libp2pHost
    protobuf_clash.py   loads hivemind and py-libp2p in one process

Sources: yamux (hashicorp/yamux, spec.md); the libp2p specifications of Noise, identify, kad and multistream-select.
"""
