"""The devices of one peer: what each holds of the parameters, and how their processes work as one.

The files, each built on those above it:

    at_once.py          several changes that nothing interrupts
    side_stream.py      copies from a CUDA device beside its computing
    portion.py          what one process holds of the parameters
    rank_orders.py      the processes of a peer with several devices: one leads, the others follow
    sharding.py         a model and the sequences of a step over several processes
    torchrun.py         what torchrun says to each process that it starts
    device_choice.py    which device a peer takes, or each of its processes; what people call it
    rank_rendezvous.py  how the processes find each other, and what ends them

Sources: DDP (arXiv 2006.15704); FSDP2 (arXiv 2304.11277).
"""
