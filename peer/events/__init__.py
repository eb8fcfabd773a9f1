"""Events of a peer as values, each with a sentence for people, and the log that stores them.

Facts about rounds are in `averaging.rounds.round_facts`. Each class that derives from `Fact`, there or here, is a kind
of event: its class name and fields form the JSON.

The files, each built on those above it:

    peer_events.py    the event that wraps a fact; members, training, checkpoints, faults, changes by the run's owner
    anchor_events.py  downloads of anchors and files; anchors that differ from the anchors of other members
    path_events.py    reachability and relays
    rotating_log.py   a log file whose failures never stop the process
    event_log.py      events as JSON lines
    log_tail.py       the newest events of that log, and events added since
    lone_rounds.py    the number of rounds in a row that had one member
"""
