"""The volunteer's program: a trainer process, a network process, and the commands around them.

The files of this folder are below all rooms, except the entry point:

    version.py             version of this software
    import_path.py         the import path of our processes, without the working folder
    child_process.py       starts, feeds and ends a child process
    installation.py        the installation of this copy, and the command that installs it elsewhere
    process_setup.py       repairs closed streams and a missing user name before anything else
    user_folders.py        the folders of one user, and paths as users write them
    secret_files.py        files of mode 0600
    optional_libraries.py  libraries that only some commands need
    __main__.py            entry point of `python -m peer`

The rooms, from the bottom up. Only `trainer/`, and the rooms that start one, load torch:

    console/        terminal output, and progress lines while libraries load
    limited_child/  a process with limits, for a library that reads an untrusted file
    data_division/  divides the data among peers, so that the swarm reads each block once per epoch (pure)
    mailbox/        shared memory between trainer process and network process
    config/         the manifest, on which all peers of a run agree, and the options of one volunteer
    data_folder/    the data folders of a run on this machine, one process in each
    sources/        the external files to which a manifest refers
    memory/         computes the memory that a peer needs before allocating any
    files/          files of a run, such as its tokenizer, identified by digest
    view/           figures of a run's progress and quality, despite lying members (pure)
    events/         events as values; the event log
    checkpoint/     both processes' state on disk
    trainer/        the trainer process
    network/        the network process
    panel/          the terminal view
    tracking/       values over time in trackio, wandb or a CSV file
    observe/        observes a run from outside
    owner/          commands that use the owner's key
    plan/           `peer plan`: the requirements of a run (pure)
    join/           `peer join`, `peer seed`, and `join` for your own training loops
    export/         `peer export`, `peer sample`, `peer evaluate`
    doctor/         `peer doctor`
    demo/           `peer demo`
    cli/            the command line: arguments in, exit code out
"""

# A part of murmuration-swarm: peer/import_path.py looks for this line.
