"""Streams to and from each remote, and the rate at which bulk data fills this peer's line.

The files, each built on those above it:

    handshake.py           opens a stream between members: hello, then welcome or refusal
    congestion_control.py  the send rate that fills the line but not the queues before it (pure)
    line_capacity.py       measures the upload capacity from acknowledgements on all lanes (pure)
    links.py               two lanes to each remote: control and data

Sources: LEDBAT (RFC 6817) and CoDel (RFC 8289) for delay as the sign of a queue.
"""
