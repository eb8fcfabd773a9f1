"""Float32 values to few bits and back, with error feedback; the kernels in numpy and C; digests.

The files, each built on those above it:

    blocks.py            encoded blocks as bytes; knows no arrays (pure)
    digests.py           BLAKE3 of values and payloads (pure)
    numpy_kernels.py     the kernels in numpy, the reference
    build_kernels.py     compiles kernels.c when the package is installed, for several processors at once
    compiled_kernels.py  the same bits from compiled kernels, and why there may be none
    codec.py             block codecs with error feedback (pure)

Sources: error feedback (arXiv 1901.09847); integers with one scale per block (arXiv 2501.18512).
"""
