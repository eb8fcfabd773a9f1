"""Text on its way to a terminal: nothing of others that it would obey, and a line at once while much is loaded.

The files, each built on those above it:

    word_wrap.py      sentences in lines of a terminal's width, broken between words
    plain_output.py   text of others: nothing that a terminal would obey
    plain_console.py  the same for tables and panels
    notices.py        what is wrong, and what is good to know
    progress.py       a line about what a slow command does at the moment
"""
