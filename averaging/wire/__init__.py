"""The messages of rounds as values, and their frames, every field checked. Knows no arrays. Pure.

The files, each built on those above it:

    messages.py       messages of a round, and the limits that they keep
    cell_messages.py  messages of two-level rounds, and the commit that closes one
    checks.py         checks of single values in frames
    cell_checks.py    checks of the frames of two-level rounds
    frames.py         the frames of all messages
    file_chunks.py    how the files of a run are cut into chunks

docs/contributor/protocol.md describes each message and field.
"""
