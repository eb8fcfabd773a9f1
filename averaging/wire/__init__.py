"""The messages of rounds as values, and their frames, every field checked. Knows no arrays. Pure.

The files, each built on those above it:

    field_checks.py   checks of single values in frames
    messages.py       messages of a round, the limits that they keep, and the check of each field
    work_by_range.py  work that differs between ranges of values: added up, told apart, dropped in part
    frames.py         the frames of all messages
    file_chunks.py    how the files of a run are cut into chunks

docs/contributor/protocol.md describes each message and field.
"""
