"""What the model writes and scores over time: asked of a process of its own, or read, since this one loads no torch.

The files, each built on those above it:

    plan.py      what is asked for, and when again
    answer_check.py    what the process says, checked
    model_process.py   the process: started, read, ended
    following.py samples for as long as the page is up
    evaluations.py  scores in tasks, from a file
"""
