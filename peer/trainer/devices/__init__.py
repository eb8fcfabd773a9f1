"""The devices of one peer: what each holds of the parameters, and how their processes work as one.

The files, each built on those above it:

    side_stream.py      copies from a CUDA device beside its computing
    rounding_errors.py  values in a short format, and what rounding left out of them
    portion.py          what one process holds of the parameters
    ranks.py            the processes of a peer with several devices: one leads, the others follow
    sharding.py         a model over several processes
    select.py           which device a peer takes, and what people call it
    rank_groups.py      how the processes find each other, and what ends them

Sources: DDP (arXiv 2006.15704); FSDP2 (arXiv 2304.11277).
"""
