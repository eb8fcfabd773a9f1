"""The ground that every room stands on: the error tree, ports, checks and quantities. It knows no room.

The files, each built on those above it:

    fields.py           strict checks of single values (pure)
    quantities.py       how numbers, times and states are written, everywhere (pure)
    delimited.py        messages with their length in front (pure)
    errors.py           the error tree, drawn once
    host.py             ports Host and Stream, PeerId
    store.py            port RecordStore, and the keys under which it holds peer records
    clocks.py           the clock that nobody sets and that goes on while the machine sleeps
    sleep_detection.py  whether this process slept, and since when (pure)
    tasks.py            ends tasks, waits for one of two things, runs tasks that nobody waits for
    compute.py          port Compute: where heavy arithmetic runs
    bounds.py           bounds of entries, of how often something may be done, and pauses after faults (pure)
    regular_files.py    reads files without waiting: no pipes, no devices; writes them whole
"""
