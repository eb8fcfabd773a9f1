"""The history in one SQLite file: memory first, one task that writes.

The files, each built on those above it:

    thinned_curves.py  thinned points of curves (pure)
    trend.py           points of the curves, and arrivals and departures (pure)
    database.py        the file: its tables, and checks before its use
    writing.py         transactions, and loading at a start
    history.py         History: combines them, with bounded queries for pages of the past
"""
