"""Observes the swarm, and combines the observations into one bounded state.

The files, each built on those above it:

    strangers_words.py  cleans strangers' text for display (pure)
    shown_manifest.py   the signed manifest in the form of the page (pure)
    round_timeline.py   each peer's newest rounds, from its records (pure)
    listed_peers.py     the listed peers and their condition: here, late, silent, left (pure)
    dashboard_state.py  DashboardState: the combined state, and the phase of the run (pure)
    join_addresses.py   the addresses that the page may show to newcomers (pure)
    fault_barrier.py    restarts a task after an error of this software
    swarm_observer.py   observes every two seconds; announces nothing
"""
