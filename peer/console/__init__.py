"""Terminal output: untrusted text without control sequences, and a progress line while much is loaded.

The files, each built on those above it:

    word_wrap.py      sentences in lines of a terminal's width, broken between words
    plain_output.py   untrusted text without control sequences
    plain_console.py  the same for tables and panels
    notices.py        errors and notices
    progress.py       a progress line of a slow command
"""
