"""Division of a run's files into chunks, and their largest size. Pure."""

from __future__ import annotations

FILE_CHUNK_BYTES = 1 << 20
"""The size of a chunk of state: one frame, and one read from a donor's disk."""
MAX_FILE_BYTES = 64 << 20
"""Largest file: the largest tokenizers take 35 MB as JSON. The digests of its chunks fit a frame of 2 KiB."""


def num_file_chunks(num_bytes: int) -> int:
    """Return the number of chunks of a file of `num_bytes`, at least one."""
    return -(-num_bytes // FILE_CHUNK_BYTES)


def file_chunk_lengths(num_bytes: int) -> list[int]:
    """Return the bytes of each chunk; all but the last are `FILE_CHUNK_BYTES` long."""
    whole, rest = divmod(num_bytes, FILE_CHUNK_BYTES)
    return [FILE_CHUNK_BYTES] * whole + ([rest] if rest else [])
