"""Several runs behind one address.

The files, each built on those above it:

    run_list.py  the file that names them
    index.py     a card for each run, also for those that could not be opened, and their pages below ``/r/RUN/``
"""
