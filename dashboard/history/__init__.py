"""The history in one SQLite file: memory first, one task that writes.

The files, each built on those above it:

    thinned_curves.py  points of curves: fewer of a long run, one for many (pure)
    trend.py           the points of the curves, and who came and went (pure)
    database.py        the file: its tables, and whether it may be used
    writing.py         transactions, and what a start reads back
    reading.py         bounded questions to the file
    history.py         History: puts them together
"""
