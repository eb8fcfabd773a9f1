"""Streams to and from every remote, and the rate at which bulk data fills this peer's line.

The files, each built on those above it:

    handshake.py           how a stream between members begins: hello, then welcome or refusal
    congestion_control.py  the pace that fills the line and not the queues before it (pure)
    line_capacity.py       what the upload line takes, learned from what arrives over all lanes (pure)
    links.py               two lanes to every remote, control and data

Sources: LEDBAT (RFC 6817) and CoDel (RFC 8289) for delay as the sign of a queue.
"""
