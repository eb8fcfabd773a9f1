"""Finds and checks the files of a source, and reads them in pieces as tokens.

Only regular files are read. In a folder all other entries are left out, and so are links that lead out of the folder: a
downloaded folder of text may contain a link to the user's keys. File contents are not kept, so a folder of any size
takes no memory.
"""

from __future__ import annotations

import codecs
import os
import shutil
import sysconfig
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dht.ground.errors import LocalFault, UsageFault, reading
from dht.ground.quantities import bytes_text
from dht.ground.regular_files import open_regular
from peer.user_folders import paths_in

DISK_KEPT_BYTES = 1 << 30
"""Disk space left free for other data, especially checkpoints."""
MAX_OPEN_FILES = 64
"""Maximum number of open files of a source; systems allow a process at least 256."""


_NOT_LIBRARY_TEXT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})

TokenType = np.dtype[np.unsignedinteger[Any]]
_BYTES: TokenType = np.dtype(np.uint8)

TokenArray = NDArray[np.unsignedinteger[Any]]


class OpenFiles:
    """Files that are read at random positions; the last `MAX_OPEN_FILES` files stay open."""

    def __init__(self) -> None:
        self._descriptors: OrderedDict[Path, int] = OrderedDict()
        weakref.finalize(self, _close_all, self._descriptors)

    def read(self, path: Path, start: int, num_bytes: int) -> bytes:
        """Read `num_bytes` bytes starting at `start`.

        Raises:
            LocalFault: the file cannot be read now, or has become shorter. A restart may help, because the file was
                valid when training began.
        """
        try:
            if path not in self._descriptors:
                while len(self._descriptors) >= MAX_OPEN_FILES:
                    os.close(self._descriptors.popitem(last=False)[1])
                with open_regular(path) as file:
                    self._descriptors[path] = os.dup(file.fileno())
            self._descriptors.move_to_end(path)
            content = os.pread(self._descriptors[path], num_bytes, start)
        except OSError as error:
            raise LocalFault(
                f"{path} cannot be read ({error.strerror or error}); expected the file as it was when training began; "
                "start again"
            ) from error
        if len(content) < num_bytes:
            raise LocalFault(
                f"{path} has become shorter than {start + num_bytes} bytes; expected the file as it was when training "
                "began; start again"
            )
        return content

    def forget(self, path: Path) -> None:
        """Close the file, because a deleted file occupies the disk while it is open."""
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)


def _close_all(descriptors: OrderedDict[Path, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


class FileTokens:
    """A part of a file as tokens; each slice is read on access.

    Args:
        first, length: in tokens.
    """

    def __init__(self, files: OpenFiles, path: Path, dtype: TokenType, first: int, length: int) -> None:
        self._files = files
        self.path = path
        self.dtype = dtype
        self._first = first
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, chosen: slice, /) -> TokenArray:
        start, stop, _ = chosen.indices(self._length)
        size = self.dtype.itemsize
        content = self._files.read(self.path, (self._first + start) * size, max(0, stop - start) * size)
        return np.frombuffer(content, self.dtype)

    def part(self, start: int, stop: int) -> FileTokens:
        """Return tokens `start` to `stop` of this part, without reading them."""
        return FileTokens(self._files, self.path, self.dtype, self._first + start, stop - start)

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self._length * self.dtype.itemsize


Tokens = TokenArray | FileTokens
"""A sequence of tokens that is read in pieces."""


Segments = list[tuple[str, FileTokens]]
"""Files, or parts of them, each with its name."""


def library_files() -> Segments:
    """Return the files of the Python standard library.

    Raises:
        UsageFault: this Python has no library text.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    opened = OpenFiles()
    found = [(name, path) for name, path in _walk(root, _NOT_LIBRARY_TEXT) if name.endswith(".py")]
    segments = [(name, _load(opened, path)) for name, path in found if path.is_file()]
    if not segments:
        raise UsageFault(f"{root} contains no .py files; expected the text of Python's library; give --data text:PATH")
    return segments


def chosen_files(text: str) -> tuple[Segments, int]:
    """Return the files of ``PATH[,PATH...]``, whose bytes are tokens, each with its name relative to its folder, and
    the number of entries of folders that were not read: links that lead out, and entries that are not regular files.

    Raises:
        UsageFault: a path is missing, unreadable, or not a regular file or folder; there is nothing to read.
    """
    segments: Segments = []
    num_left_out, opened = 0, OpenFiles()
    for path in paths_in(text):
        files, num_others = files_at(path)
        num_left_out += num_others
        segments += [(name, _load(opened, file)) for name, file in files]
    if not any(len(tokens) for _, tokens in segments):
        left_out = f" (left out {num_left_out} entries that lead out of the folder or are not files)"
        raise UsageFault(f"{text} contains no text{left_out if num_left_out else ''}; expected files with text")
    return segments, num_left_out


def files_at(path: Path) -> tuple[list[tuple[str, Path]], int]:
    """Return (name relative to the folder, path) of a file or of those in a folder, and the number of omitted entries.

    Raises:
        UsageFault: the path does not exist.
    """
    check_there(path)
    return _inside(path) if path.is_dir() else ([(path.name, path)], 0)


def check_there(path: Path) -> None:
    """Raise UsageFault if the path does not exist."""
    if not path.exists():
        raise UsageFault(
            f"{path} does not exist; expected a file or folder to read (commas separate several); check the data source"
        )


def check_readable(text: str) -> None:
    """Open all files of ``PATH[,PATH...]`` without reading them.

    Raises:
        UsageFault: a path is missing, a file cannot be read, or all files are empty.
    """
    holds_any = False
    for path in paths_in(text):
        for _, file in files_at(path)[0]:
            with reading(file), open_regular(file) as opened:
                holds_any |= os.fstat(opened.fileno()).st_size > 0
    if not holds_any:
        raise UsageFault(
            f"{text} contains no files, or only empty files; expected text, rows or token shards; check --data"
        )


def check_room(folder: Path, num_bytes: int, what: str) -> None:
    """Check that `num_bytes` for `what` leave `DISK_KEPT_BYTES` of the folder's disk free.

    Raises:
        LocalFault: there is too little room.
    """
    free = shutil.disk_usage(folder).free
    if free < num_bytes + DISK_KEPT_BYTES:
        raise LocalFault(
            f"{folder} has {bytes_text(free)} left, but {what} takes {bytes_text(num_bytes)}; expected that and 1 GB "
            "more; free some disk space"
        )


def _walk(root: Path, left_out: frozenset[str] = frozenset()) -> Iterator[tuple[str, Path]]:
    """Return the entries below `root` as (path relative to `root`, path), sorted by name, without hidden entries.

    Raises:
        UsageFault: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        with reading(Path(error.filename)):
            raise error

    found = []
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if name not in left_out and not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                path = Path(folder, name)
                found.append((path.relative_to(root).as_posix(), path))
    return iter(sorted(found))


def _inside(root: Path) -> tuple[list[tuple[str, Path]], int]:
    """Return the regular files below `root`, and the number of omitted entries."""
    real_root = Path(os.path.realpath(root))
    files, num_left_out = [], 0
    for name, path in _walk(root):
        leads_out = path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(real_root)
        if leads_out or not path.is_file():
            num_left_out += 1
        else:
            files.append((name, path))
    return files, num_left_out


def _load(files: OpenFiles, path: Path) -> FileTokens:
    """Return the bytes of one regular file, without reading them.

    Raises:
        UsageFault: the file cannot be read.
    """
    with reading(path), open_regular(path) as file:
        # A file of /proc reports size 0, and bytes that a growing file gets later belong to no block.
        num_bytes = os.fstat(file.fileno()).st_size
        mark = file.read(len(codecs.BOM_UTF8))
    first = len(mark) if mark == codecs.BOM_UTF8 else 0
    return FileTokens(files, path, _BYTES, first, num_bytes - first)
