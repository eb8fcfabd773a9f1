"""How the files of a run are cut into chunks, and how long they may be. Pure."""

from __future__ import annotations

FILE_CHUNK_BYTES = 1 << 20
"""As long as a chunk of state: one frame, and what a donor reads from its disk at a time."""
MAX_FILE_BYTES = 64 << 20
"""Of one file: the largest tokenizers take 35 MB as JSON. The digests of its chunks are one frame of 2 KiB."""


def num_file_chunks(num_bytes: int) -> int:
    """Chunks of a file of so many bytes, at least one."""
    return -(-num_bytes // FILE_CHUNK_BYTES)


def file_chunk_lengths(num_bytes: int) -> list[int]:
    """Bytes of each chunk; all but the last are `FILE_CHUNK_BYTES` long."""
    whole, rest = divmod(num_bytes, FILE_CHUNK_BYTES)
    return [FILE_CHUNK_BYTES] * whole + ([rest] if rest else [])
