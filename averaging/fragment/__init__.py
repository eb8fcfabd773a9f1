"""State and memory of one fragment at one peer while its rounds run.

The files, each built on those above it:

    broadcast_errors.py  encoding errors of this peer's broadcasts, by range of values (pure)
    shard_store.py       contributions and results in flight, within limits (pure)
    runtime.py           state, machine and store of one fragment
"""
