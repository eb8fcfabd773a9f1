"""How a volunteer's machine computes an inner step; none of it is the run's business, whose gradient stays the same.

The files, each built on those above it:

    compute_choices.py          what a volunteer may choose about it
    memory_exceptions.py        whether an exception is about memory, and what its owner reads then
    backward_passes.py          how many sequences a pass takes, in which number formats, compiled or not
    recompute_and_attention.py  activations kept or computed again; kinds of attention

Sources: mixed precision and loss scaling (arXiv 1710.03740), activation checkpointing (arXiv 1604.06174).
"""
