"""`Libp2pHost`: the port Host in pure Python, without a daemon or a child process, for observers.

The files, each built on those above it:

    messages.py         what libp2p hosts tell of themselves and others: identify, FIND_NODE (pure)
    noise_handshake.py  from TCP to an authenticated channel: multistream-select, then py-libp2p's Noise
    yamux.py            many streams over one channel, within limits
    connections.py      the live connections: dialled, counted, pruned, closed
    host.py             Libp2pHost
    protobuf_clash.py   lets hivemind and py-libp2p into one process

Sources: yamux (hashicorp/yamux, spec.md); the libp2p specifications of Noise, identify, kad and multistream-select.
"""
