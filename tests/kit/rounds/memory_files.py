"""Files of a run that a donor gives away, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from averaging.codec.digests import digest_of
from averaging.wire.file_chunks import FILE_CHUNK_BYTES


class MemoryFiles:
    """`averaging.transfer.server.FileSource`."""

    def __init__(self, *contents: bytes) -> None:
        self._files = {digest_of(content): content for content in contents}

    def chunk_digests(self, digest: bytes) -> Sequence[bytes]:
        content = self._files.get(digest, b"")
        return [digest_of(content[at : at + FILE_CHUNK_BYTES]) for at in range(0, len(content), FILE_CHUNK_BYTES)]

    async def chunk(self, digest: bytes, index: int) -> bytes:
        return self._files[digest][index * FILE_CHUNK_BYTES : (index + 1) * FILE_CHUNK_BYTES]
