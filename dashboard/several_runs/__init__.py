"""Several runs behind one address.

The files, each built on those above it:

    run_list.py  the file that names them
    cards.py     a card for each run, also for those that could not be opened, and the index of them
    index.py     the index over HTTP, and each run's own pages below ``/r/RUN/``
"""
