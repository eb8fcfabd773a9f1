"""The volunteer's program: a trainer process, a network process, and the commands around them.

The files of this folder stand under all rooms, but for the entry point:

    version.py             version of this software
    import_path.py         where our processes take code from: never from the working folder
    child_process.py       one way to start, feed and end a process beside this one
    installation.py        how this copy was installed, and what others type to get it
    process_setup.py       closed streams, a user without a name: put right before anything else
    user_folders.py        where this software keeps what belongs to one user, and the paths that they write
    secret_files.py        files of mode 0600
    optional_libraries.py  libraries that only some commands need
    __main__.py            entry point of `python -m peer`

The rooms, from the bottom up. Only `trainer/`, and the rooms that start one, load torch:

    console/        text on its way to a terminal, and what it shows before anything is loaded
    limited_child/  a process with limits, for a library that reads a stranger's file
    data_division/  each block of the data once per epoch over the swarm: who reads what next (pure)
    mailbox/        shared memory between trainer process and network process
    config/         what all peers of a run agree on (manifest), and what one volunteer may choose
    data_folder/    the data folders of a run on this machine, one process in each
    sources/        what a manifest names outside of itself: one way to it, one table of it
    memory/         memory that a peer needs, known before it takes any
    files/          files of a run, such as its tokenizer, known by digest
    view/           where a run is and how good it is, whoever lies (pure)
    events/         what can happen, as values; the event log
    checkpoint/     both processes' state on disk
    trainer/        the trainer process
    network/        the network process
    panel/          what the person at the terminal sees; figures for Prometheus
    tracking/       values over time in trackio, wandb or a CSV file
    observe/        looking at a run from outside
    owner/          what the owner's key is for
    plan/           `peer plan`: what a run asks of a home (pure)
    join/           `peer join`, `peer seed`, and `join` for your own training loops
    export/         `peer export`, `peer sample`, `peer evaluate`
    doctor/         `peer doctor`
    demo/           `peer demo`
    cli/            the command line: arguments in, exit code out
"""

# A part of murmuration-swarm: peer/import_path.py looks for this line.
