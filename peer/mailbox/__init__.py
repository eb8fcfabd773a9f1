"""The mailbox: lock-free shared memory between the trainer process and the network process.

The files, each built on those above it:

    shared_memory.py  counters and fragment states: aligned cells with one writer each
    reading_cells.py  cells that record which data is being read
    slots.py          messages in both directions
    mailbox.py        the shared block
"""
