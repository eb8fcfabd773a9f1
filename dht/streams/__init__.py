"""Bytes on one connection: frames, and what one remote may take of rate, memory, streams and turns.

The files, each built on those above it:

    byte_stream.py                 the bytes of a connection to the daemon, read without copies
    upload_and_download_limits.py  token buckets: the volunteer's limits per direction, and the pace of the line
    remote_memory.py               how much of what one remote sends is held in memory
    framing.py                     frames on a byte stream
    streams_per_remote.py          how many streams each remote may have open, and which one ends for another's
    fair_turns.py                  turns at something scarce, shared between remotes
"""
