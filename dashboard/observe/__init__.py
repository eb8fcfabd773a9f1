"""Looks at the swarm and folds what was seen into one bounded state.

The files, each built on those above it:

    strangers_words.py  strangers' words as they may be shown (pure)
    shown_manifest.py   what the owner signed, as the page shows it (pure)
    round_timeline.py   every peer's newest rounds, gathered from records (pure)
    listed_peers.py     which peers a page lists, and as what: here, late, silent, left (pure)
    run_phase.py        live, stalled, resting, silent, ended, or not found yet (pure)
    dashboard_state.py  DashboardState: the fold (pure)
    join_addresses.py   which addresses may be shown to those who want to join (pure)
    fault_barrier.py    a task that goes on after a fault of this software
    swarm_observer.py   looks every two seconds; announces nothing
"""
