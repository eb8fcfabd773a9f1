"""The mailbox: shared memory between trainer process and network process, without locks.

The files, each built on those above it:

    shared_memory.py  its counters and fragment states: aligned cells with one writer each
    reading_cells.py  which data this peer and others read, in cells
    slots.py          its messages, both ways
    mailbox.py        the shared block
"""
