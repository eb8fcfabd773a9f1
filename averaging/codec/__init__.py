"""Encode float32 values in a few bits each, with error feedback; kernels in numpy and C; digests.

The files, each built on those above it:

    blocks.py            encoded blocks as bytes; knows no arrays (pure)
    digests.py           BLAKE3 of values and payloads (pure)
    numpy_kernels.py     the kernels in numpy, the reference
    build_kernels.py     compiles kernels.c when the package is installed, for several processors at once
    compiled_kernels.py  calls the compiled kernels, which give the same bits, or reports why they are missing
    codec.py             block codecs with error feedback (pure)

Sources: error feedback (arXiv 1901.09847); integers with one scale for each block (arXiv 2501.18512).
"""
