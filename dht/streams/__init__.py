"""Bytes on one connection: frames, and limits on the rate, memory, streams and turns of each remote.

The files, each built on those above it:

    byte_stream.py                 bytes of a connection to the daemon, read without copies
    upload_and_download_limits.py  token buckets: the volunteer's limits per direction, and the pace of the line
    remote_memory.py               limit on the memory for the frames of each remote
    framing.py                     frames on a byte stream
    streams_per_remote.py          limit on the open streams of each remote
    fair_turns.py                  turns at a scarce resource, shared between remotes
"""
