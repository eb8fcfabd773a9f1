"""The table of commands, their help, and the sentences and exit codes for mistakes.

The files, each built on those above it:

    commands.py       the table of all commands; `peer --help`
    plain_command.py  commands with plain help; mistakes in one sentence
    exit_codes.py     exit codes; one sentence instead of a traceback
    lazy_commands.py  all commands, each loaded on first use
"""
