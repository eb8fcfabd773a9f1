"""Several runs behind one address.

The files, each built on those above it:

    run_list.py  the file that lists them
    index.py     a card for each run, including unopened ones, and their pages below ``/r/RUN/``
"""
