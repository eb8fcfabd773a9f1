"""What a start, or a new run, writes into a folder before anybody has seen its key: taken back when it fails."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from dht.ground.errors import LocalFault
from peer.folder_lock import LOCK_NAME, FolderLock


class FreshFolder:
    """Notes what is not there yet; made before the folder is.

    Args:
        files: that may be written, in the folder or elsewhere; folders of files too.
    """

    def __init__(self, folder: Path, files: Iterable[Path]) -> None:
        self._folder = folder
        self._files = [path for path in (*files, folder / LOCK_NAME) if not os.path.lexists(path)]
        self._folders = [one for one in (folder, *folder.parents) if not one.exists()]

    def take_back(self) -> None:
        """Delete these files and empty folders, unless another process uses the folder by now."""
        if not self._folder.is_dir():
            return
        try:
            lock = FolderLock(self._folder, None)
        except LocalFault:
            return
        for path in self._files:
            with contextlib.suppress(OSError):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        lock.close()
        for folder in self._folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
