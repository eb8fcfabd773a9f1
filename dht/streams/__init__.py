"""Bytes on one connection: frames, and what one remote may take of rate, memory and turns.

The files, each built on those above it:

    byte_stream.py    the bytes of a connection to the daemon, read without copies
    rate_limits.py         token buckets: the volunteer's limits per direction, and the pace of the line
    remote_memory.py  how much of what one remote sends is held in memory
    framing.py        frames on a byte stream
    fair_turns.py     turns at something scarce, shared between remotes; how many streams each of them has
"""
