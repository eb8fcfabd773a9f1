"""A file of the run while it is fetched: checked chunks, kept on disk until all of them are there.

The files of a killed process are checked by the next one, which fetches only the missing chunks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from averaging.wire.file_chunks import FILE_CHUNK_BYTES, file_chunk_lengths
from dht.ground.errors import LocalFault
from dht.ground.regular_files import open_regular, sync
from peer.config.allowed_files import FileSection
from peer.files.checked_folder import objection_to


@dataclass(eq=False)
class FileDraft:
    """`averaging.transfer.chunked_pieces.ChunkedPiece` of one file.

    Attributes:
        folder: destination folder; made when the first chunk arrives.
        chunk_digests: digests of its chunks, checked against the manifest.
    """

    folder: Path
    file: FileSection
    chunk_digests: Sequence[bytes]

    def __post_init__(self) -> None:
        self._lengths = file_chunk_lengths(self.file.bytes)
        # No file of a run has a name that starts with a dot.
        self._path = self.folder / f".{self.file.name}.part"

    @property
    def name(self) -> str:
        return f"the file {self.file.name}"

    def chunk_bytes(self, index: int) -> int:
        return self._lengths[index]

    def request(self, part: range) -> list[Any]:
        return ["file-chunks", bytes.fromhex(self.file.digest), part.start, len(part)]

    def kept(self) -> Iterator[bytes]:
        """Yield the chunks that an earlier process wrote, in order. They are not trusted."""
        try:
            with open_regular(self._path) as file:
                for length in self._lengths:
                    yield file.read(length)
        except OSError:
            return

    def put(self, index: int, chunk: bytes) -> None:
        """Write one chunk. Raises LocalFault if the disk is full or the folder cannot be written."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(self._path, flags, 0o600), "wb") as file:
                file.seek(index * FILE_CHUNK_BYTES)
                file.write(chunk)
        except OSError as error:
            raise self._unwritable(error) from error

    def finish(self) -> None:
        """Check the whole file and move it to its destination.

        Raises:
            LocalFault: the disk did not keep the chunks, or the folder cannot be written.
        """
        target = self.folder / self.file.name
        try:
            if not objection_to(target, self.file):
                # Another process for the same run has completed the draft first.
                self._path.unlink(missing_ok=True)
                return
            if os.stat(self._path).st_size > self.file.bytes:
                os.truncate(self._path, self.file.bytes)
            if objection := objection_to(self._path, self.file):
                self._path.unlink()
                raise LocalFault(
                    f"the file {self.file.name} of the run {objection}, although its chunks arrived intact; expected "
                    "a disk that stores them unchanged; check the disk, and start again"
                )
            sync(self._path)
            os.replace(self._path, target)
            sync(self.folder)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> LocalFault:
        return LocalFault(
            f"{self.folder / self.file.name} cannot be written: {error.strerror or error}; expected a writable folder "
            f"with {self.file.bytes} bytes of free space; free some space and start again: the chunks that have "
            "arrived are kept"
        )
