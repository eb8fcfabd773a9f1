"""Memory that a peer needs, known before it takes any.

The file:

    least_memory.py  refuses a model before it takes all memory
"""
