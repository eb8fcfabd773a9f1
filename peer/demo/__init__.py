"""`peer demo`: a local swarm of real processes that trains on real text.

The files, each built on those above it:

    summary.py             what the logs of a demo say (pure but for reading them)
    leftovers.py           what a killed demo leaves is taken away by a process of its own
    swarm.py               the processes, and how none of them is left
    progress_table.py      one table that changes in place, or lines in a pipe
    measuring_messages.py  what the measuring process is asked and answers
    measuring_process.py   that process: what the model says and how badly it guesses
    report.py              what is said at the end
    llama.py               a model of transformers for it
    demo.py                the play: who starts, who is killed, who comes late
"""
