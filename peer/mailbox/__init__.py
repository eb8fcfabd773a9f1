"""The mailbox: shared memory between trainer process and network process. Nobody takes a lock.

The files, each built on those above it:

    shared_memory.py  its counters and fragment states: aligned cells with one writer each
    data_reading.py   which data this peer and others read
    slots.py          its messages, both ways
    mailbox.py        the shared block
"""
