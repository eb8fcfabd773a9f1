"""Run a library on an untrusted file in a child process with limits.

A module of ours has a function `prepare(setup)`, which returns a function `answer(question, body)`. The child
confines itself, imports that module, and calls them. `LimitedChild(MODULE, setup, ChildLimits(...), "the tokenizer of
run 'books'")` starts one; `ask(question)` returns its answer, or raises one sentence.

The files:

    frames.py         JSON and bytes on a pipe
    confinement.py    no network, no credentials, bounded memory and time (Linux: seccomp and rlimits)
    process.py        the child's end, entry point of `python -m peer.limited_child.process`
    limited_child.py  the parent's end: starts with limits, asks, closes; one sentence for every kind of failure
"""
