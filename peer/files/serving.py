"""Serve the files of a run: chunk by chunk from the disk, each checked before it is sent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from averaging.codec.digests import digest_of
from averaging.wire.file_chunks import FILE_CHUNK_BYTES
from dht.ground.compute import Compute, compute_inline
from dht.ground.regular_files import open_regular
from peer.config.manifest import RunManifest
from peer.files.checked_folder import files_folder, measure_file

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedFiles:
    """`averaging.transfer.server.FileSource` for the files in a data folder. Keeps 32 bytes per chunk in memory.

    Attributes:
        known: (path, BLAKE3 of each chunk) by the digest of the whole file; see `read_served`.
        compute: runs the reading and checking of chunks.
    """

    known: dict[bytes, tuple[Path, tuple[bytes, ...]]]
    compute: Compute = compute_inline

    def chunk_digests(self, digest: bytes) -> Sequence[bytes]:
        return self.known[digest][1] if digest in self.known else ()

    async def chunk(self, digest: bytes, index: int) -> bytes:
        if digest not in self.known:
            return b""  # another request found a damaged chunk of this file meanwhile
        path, digests = self.known[digest]
        try:
            chunk = await self.compute(partial(_read, path, index))
        except FileNotFoundError:
            chunk = b""
        except OSError as error:
            log.info("%s cannot be read now: %s", path, error)  # e.g. if all descriptors are in use
            return b""
        if digest_of(chunk) == digests[index]:
            return chunk
        log.warning("%s was changed or removed; it is not served again until this peer is restarted", path)
        self.known.pop(digest, None)
        return b""


def read_served(data_dir: Path, manifest: RunManifest) -> dict[bytes, tuple[Path, tuple[bytes, ...]]]:
    """Read every file of the run on this disk, and return those that are complete, for `ServedFiles`."""
    folder, known = files_folder(data_dir, manifest), {}
    for file in manifest.files:
        try:
            found = measure_file(folder / file.name, file.name)
        except (OSError, ValueError) as error:
            log.warning("%s is not served: %s", folder / file.name, error)
            continue
        if found.file == file:
            known[bytes.fromhex(file.digest)] = folder / file.name, found.chunk_digests
    return known


def _read(path: Path, index: int) -> bytes:
    with open_regular(path) as file:
        file.seek(index * FILE_CHUNK_BYTES)
        return file.read(FILE_CHUNK_BYTES)
