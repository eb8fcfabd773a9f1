"""The data folders of a run's peers on this machine: one process uses each.

The files, each built on those above it:

    folder_lock.py         the lock that one process holds, and the words for that process
    run_folders.py         the folders of a run on this machine, and its seed there
    data_folder_choice.py  the folder that a start takes, and what it leaves when it fails
"""
