"""The life of a peer, from its flags to its goodbye; this room creates everything that its two processes need.

The files, each built on those above it:

    before_start.py           checks of ports, data and a member's answer, before slow imports
    run_connection.py         network process, mailbox and link, which all training loops use
    run_introduction.py       facts about the run that both commands show in their terminal
    checkpoint_disk_space.py  check that the disk has room for checkpoints
    join.py                   `peer join`
    seed.py                   `peer seed`, in one process and without torch
    own_loop_scheduler.py     learning-rate schedulers that follow the run's clock
    python_error_words.py     errors for a reader of Python: arguments instead of flags
    running_loop.py           check whether the loop that entered a session is still running
    session.py                `join` for your own training loop
"""
