"""The memory that a peer needs, computed before it allocates any.

The files:

    base_bits.py           pretrained weights in fewer bits: the runs that allow it, and the size (pure)
    architecture_sizes.py  parameters and buffers of an architecture, from a child with limits
    least_memory.py        refuses a model that would use all memory
"""
