"""The memory that a peer needs, computed before it takes any.

The files:

    base_bits.py           pretrained weights in fewer bits: in which runs, and how many bytes (pure)
    architecture_sizes.py  parameters and buffers of an architecture, from a child with limits
    least_memory.py        refuses a model before it takes all memory
"""
