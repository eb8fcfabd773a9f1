"""The data folders of a run's peers on this machine: one process uses each.

The files, each built on those above it:

    folder_lock.py         the lock that one process holds, and a description of that process
    run_folders.py         the folders of a run on this machine, and its seed there
    data_folder_choice.py  the folder for a new process, and the cleanup after a failed start
"""
