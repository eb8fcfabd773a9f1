"""From flags to a peer that trains, and back to the prompt: everything that the two processes need is made here.

The files, each built on those above it:

    before_start.py           ports, data and a member that answers: seen to before anything heavy is loaded
    run_connection.py         what every training loop shares: network process, mailbox, link
    run_introduction.py       what both commands tell their terminal
    checkpoint_disk_space.py  whether the disk has room for checkpoints
    join.py                   `peer join`
    seed.py                   `peer seed`, the same in one process and without torch
    own_loop_scheduler.py     learning-rate schedulers that go by the run's clock
    python_error_words.py     faults for a reader of Python: arguments in place of flags
    running_loop.py           whether the loop that entered a session still runs
    session.py                `join` for your own training loop
"""
