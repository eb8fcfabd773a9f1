"""What the person at the terminal sees of a running peer, and its figures for Prometheus.

The files, each built on those above it:

    state.py       fold of events for the panel (pure)
    panel.py       live panel, plain lines, JSON lines
    metrics.py     figures for Prometheus, on a port of their own
    own_folder.py  the data folder that a peer takes
    terminal.py    view, event log and Ctrl+C while a peer runs
"""
