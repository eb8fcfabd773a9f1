"""The model's texts and scores over time, from a separate process or a file, since this process does not load torch.

The files, each built on those above it:

    sample_schedule.py  prompts, and the times of samples
    answer_check.py     checks of the process's answers
    model_process.py    starts, reads and ends the process
    sample_loop.py      takes samples while the page is up
    score_file.py       task scores from a file
"""
