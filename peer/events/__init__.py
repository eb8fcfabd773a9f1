"""What can happen to a peer, as values; the log that keeps them, and the sentences for people.

The files, each built on those above it:

    peer_events.py      what every event has; members, transfers, checkpoints, faults
    round_events.py     rounds, and the work that goes through them
    path_events.py      reachability, relays and paths
    revision_events.py  what the owner changes
    line_log.py         a log file that never stops its owner
    log.py              events as JSON lines and as sentences
    refusals.py         what was refused here, per remote and kind
"""
