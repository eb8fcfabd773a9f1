"""Chunks of unfinished downloads on the disk, so that a restarted peer does not fetch them twice.

    incoming/fragment-0003.json      which state it is: version, tokens, digest of every chunk
             fragment-0003.chunks    the chunks, each in its place; whatever has not come is a hole

Nothing is synced: after a power cut some chunks do not have their digest, and come again.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from averaging.transfer.messages import Header
from dht.ground.regular_files import open_regular
from peer.checkpoint.checked_files import read_json, write_json

log = logging.getLogger(__name__)


class ChunkFiles:
    """`averaging.transfer.chunk_assignment.KeptChunks` in a folder, which is made when the first chunk comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_broken = False

    def header(self, fragment: int, num_chunks: int) -> Header | None:
        path = self._path(fragment, "json")
        if not path.exists():
            return None
        try:
            content = read_json(path)
            digests = tuple(bytes.fromhex(digest) for digest in content["chunks"])
            version, tokens = content["version"], content["lineage_tokens"]
        except (ValueError, KeyError, TypeError) as error:
            log.warning("an unfinished download begins anew: %s", error)
            return None
        well_formed = type(version) is int and type(tokens) is int and all(len(digest) == 32 for digest in digests)
        return Header(version, tokens, digests) if well_formed and len(digests) == num_chunks else None

    def chunks(self, fragment: int, lengths: list[int]) -> Iterator[bytes]:
        try:
            with open_regular(self._path(fragment, "chunks")) as file:
                for length in lengths:
                    yield file.read(length)
        except OSError as error:
            log.debug("no kept chunks of fragment %d: %s", fragment, error)

    def begin(self, fragment: int, header: Header) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for suffix in ("json", "chunks"):
                self._path(fragment, suffix).unlink(missing_ok=True)
            content = {
                "version": header.version,
                "lineage_tokens": header.lineage_tokens,
                "chunks": [digest.hex() for digest in header.chunk_digests],
            }
            write_json(self._path(fragment, "json"), content)
        except OSError as error:
            self._give_up(error)

    def put(self, fragment: int, offset: int, chunk: bytes) -> None:
        if self._is_broken:
            return
        try:
            descriptor = os.open(self._path(fragment, "chunks"), os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(descriptor, chunk, offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._give_up(error)

    def forget(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _give_up(self, error: OSError) -> None:
        if not self._is_broken:
            log.warning(
                "downloads are not kept for a restart (%s: %s); expected room for two copies of the model",
                error.filename or self._folder,
                error.strerror,
            )
        self._is_broken = True

    def _path(self, fragment: int, suffix: str) -> Path:
        return self._folder / f"fragment-{fragment:04d}.{suffix}"
