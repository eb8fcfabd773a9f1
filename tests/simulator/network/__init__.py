"""A whole swarm's network in one process, for tests and the simulator: ports Host and RecordStore.

The files, each built on those above it:

    lines.py  simulated lines and streams: rates, latency, back-pressure
    host.py   MemoryNetwork and MemoryHost, with faults on demand
    store.py  MemoryStore: shared records, with delay and partitions
"""
