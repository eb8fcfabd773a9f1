"""Text on its way to a terminal: nothing of others that it would obey, and a line at once while much is loaded.

The files, each built on those above it:

    word_wrap.py                sentences in lines of a terminal's width, broken between words
    plain_output.py             text of others: nothing that a terminal would obey
    plain_console.py            the same for tables and panels
    first_lines.py              the checklist in the first moment of `peer join`
    interrupt_while_loading.py  Ctrl+C while something is loaded that lets no Python code run
    progress.py                 a line about what a slow command does at the moment
"""
