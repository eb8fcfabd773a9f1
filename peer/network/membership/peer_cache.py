"""Where members were, kept for the next start; a disk that takes nothing costs one sentence."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from peer.config.peer_config import read_cached_peers, write_cached_peers

log = logging.getLogger(__name__)


class PeerCache:
    """The addresses of earlier sessions in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_failing = False

    def read(self) -> list[str]:
        """The most recently seen first."""
        return read_cached_peers(self._path)

    def keep(self, addresses: Iterable[str]) -> None:
        """Put these before what is there. Never raises: nothing else depends on it."""
        known = [*addresses, *self.read()]
        if not known:
            return
        try:
            write_cached_peers(self._path, known)
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                log.warning(
                    "%s cannot be written (%s): where members are is not kept for the next start, and everything else "
                    "goes on; free some space, or check the folder",
                    self._path,
                    error.strerror or error,
                )
            self._is_failing = True
