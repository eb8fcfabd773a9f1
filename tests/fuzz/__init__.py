"""Fuzzing: `python -m tests.fuzz --seconds 60`.

The files, each built on those above it:

    messages.py  a valid message of each kind
    targets.py   decoders: valid input, and what they may raise
    swarm.py     a hostile swarm in memory, for commands
    commands.py  commands as targets
    fuzzer.py    mutations, limits, findings
    guided.py    one decoder under atheris, in a process of its own
"""
