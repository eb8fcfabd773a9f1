"""Messages of rounds as values and as frames, with checks of each field. Does not use arrays. Pure.

The files, each built on those above it:

    field_checks.py   checks of single values in frames
    messages.py       messages of a round, their limits, and the check of each field
    work_by_range.py  sums, comparisons and parts of work that differs between ranges of values
    frames.py         the frames of all messages
    file_chunks.py    division of a run's files into chunks

docs/contributor/protocol.md describes each message and field.
"""
