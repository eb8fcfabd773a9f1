"""How the command line speaks: which commands there are, their help, and what is said when something is wrong.

The files, each built on those above it:

    commands.py       the table of all commands; `peer --help`
    other_tools_words.py  words of other tools, and ours for them
    mistakes.py       what is wrong with a command line, in one sentence
    plain_help.py     help that shows first what everybody needs
    exit_codes.py     exit codes; one sentence in place of a traceback
    lazy_commands.py  all commands, each loaded when it is named
"""
