"""How a volunteer's machine computes an inner step. These settings do not change the gradient of the run.

The files, each built on those above it:

    compute_choices.py          settings that a volunteer may choose
    memory_exceptions.py        detects that memory ran out, and describes it to the volunteer
    backward_passes.py          sequences per pass, number formats, compiling
    recompute_and_attention.py  activation checkpointing; kinds of attention

Sources: mixed precision and loss scaling (arXiv 1710.03740), activation checkpointing (arXiv 1604.06174).
"""
