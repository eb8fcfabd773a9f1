"""The devices of one peer: the part of the parameters on each, and how their processes work together.

The files, each built on those above it:

    at_once.py          several changes without an interruption between them
    side_stream.py      copies from a CUDA device while it computes
    portion.py          the part of the parameters in one process
    rank_orders.py      the processes of a peer with several devices: one leads, the others follow
    sharding.py         divides a model and the sequences of a step among processes
    torchrun.py         the environment variables that torchrun sets in its processes
    device_choice.py    selects the device of a peer or of each process, and names it for people
    rank_rendezvous.py  how the processes find each other, and what ends them

Sources: DDP (arXiv 2006.15704); FSDP2 (arXiv 2304.11277).
"""
