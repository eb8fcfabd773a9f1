"""How the command line speaks: which commands there are, their help, and what is said when something is wrong.

The files, each built on those above it:

    commands.py       the table of all commands; `peer --help`
    plain_command.py  commands with plain help; mistakes in one sentence
    exit_codes.py     exit codes; one sentence in place of a traceback
    lazy_commands.py  all commands, each loaded when it is named
"""
