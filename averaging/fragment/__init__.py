"""What one fragment holds at one peer while its rounds run.

The files, each built on those above it:

    broadcast_errors.py  what broadcasts of this peer lost in encoding, by range of values (pure)
    shard_store.py       contributions and results in flight, within limits (pure)
    runtime.py           state, machine and store of one fragment
"""
