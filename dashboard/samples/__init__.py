"""What the model writes and scores over time: asked of a process of its own, or read, since this one loads no torch.

The files, each built on those above it:

    sample_schedule.py  what is asked for, and when again
    answer_check.py     what the process says, checked
    model_process.py    the process: started, read, ended
    sample_loop.py      samples for as long as the page is up
    score_file.py       scores in tasks, from a file
"""
