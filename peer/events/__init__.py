"""What can happen to a peer, as values, each with its sentence for people; the log that keeps them.

Facts of rounds are in `averaging.rounds.round_facts`. A class that derives from `Fact`, there or here, is a kind of
event: class name and fields are its JSON.

The files, each built on those above it:

    peer_events.py    the event that wraps a fact; members, training, checkpoints, faults, what the owner changes
    anchor_events.py  downloads of anchors and files; anchors that differ from those of others
    path_events.py    reachability and relays
    rotating_log.py   a log file that never stops its owner
    event_log.py      events as JSON lines
    log_tail.py       the end of that log, and what is added
    lone_rounds.py    how many rounds in a row had one member
"""
