"""Basis of all rooms: the error tree, ports, checks and quantities. Imports no room.

The files, each built on those above it:

    fields.py           strict checks of single values (pure)
    quantities.py       text forms of numbers, times and states (pure)
    delimited.py        length-prefixed messages (pure)
    errors.py           the error tree
    host.py             ports Host and Stream, PeerId
    store.py            port RecordStore, and the keys of peer records
    clocks.py           a clock that cannot be set and continues during sleep
    sleep_detection.py  detects that this process slept, and since when (pure)
    tasks.py            ends tasks, waits for one of two events, runs background tasks
    compute.py          port Compute: where heavy arithmetic runs
    bounds.py           bounds of entries and rates, and pauses after faults (pure)
    regular_files.py    reads regular files only, and writes files atomically
"""
