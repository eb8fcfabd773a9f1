"""The files behind a source: found, checked, and read or mapped as tokens.

Only regular files are read. In a folder everything else is left out, and so are links that lead out of it: a folder of
text from somewhere may hold a link to one's keys.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dht.errors import UsageFault
from dht.quantities import bytes_text
from dht.regular_files import open_regular, read_regular
from peer.config.least_memory import all_memory_bytes
from peer.config.peer_config import expanded

MAX_MEMORY_SHARE = 4
"""A fourth of the machine's memory, at most, holds what is read and not mapped."""

_MAP_FROM_BYTES = 64 << 20  # larger files are memory-mapped, smaller ones read once
_SHARD_SUFFIXES = (".u16", ".u32", ".bin")
_MAX_SIDECAR_BYTES = 64 * 1024
_NOT_LIBRARY_TEXT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})

TokenType = np.dtype[np.unsignedinteger[Any]]
_BYTES: TokenType = np.dtype(np.uint8)
_TOKEN_TYPES: dict[str, TokenType] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}

Tokens = NDArray[np.unsignedinteger[Any]]


@dataclass
class FoundFiles:
    """What a source consists of.

    Attributes:
        segments: (name relative to its folder, tokens) of each file.
        num_left_out: entries of folders that were not read: links that lead out, and what is no regular file.
    """

    segments: list[tuple[str, Tokens]] = field(default_factory=list)
    num_left_out: int = 0


def library_files() -> FoundFiles:
    """The Python standard library's own text.

    Raises:
        UsageFault: this Python has none.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    reader = _Reader()
    found = [(name, path) for name, path in _walk(root, _NOT_LIBRARY_TEXT) if name.endswith(".py")]
    segments = [(name, reader.load(path, _BYTES)) for name, path in found if path.is_file()]
    if not segments:
        raise UsageFault(f"no .py files under {root}; this Python has no library text; choose --data text:PATH")
    return FoundFiles(segments)


def chosen_files(text: str, *, is_text: bool) -> FoundFiles:
    """The files and folders of ``PATH[,PATH...]``; `is_text`: bytes are tokens.

    Raises:
        UsageFault: a path is missing, unreadable, or no regular file or folder; a shard does not say its type; there is
            nothing to read, or more than the memory is for.
    """
    found, reader = FoundFiles(), _Reader()
    for path in paths_in(text):
        if not path.exists():
            raise UsageFault(
                f"{path} does not exist; expected a file or folder to read (commas separate several); check the data "
                "source"
            )
        if not path.is_dir():
            files = [(path.name, path)]
        else:
            files, num_left_out = _inside(path)
            found.num_left_out += num_left_out
            if not is_text:
                files = [(name, file) for name, file in files if file.suffix in _SHARD_SUFFIXES]
        found.segments += [(name, reader.load(file, _BYTES if is_text else _token_type(file))) for name, file in files]
    if not any(len(tokens) for _, tokens in found.segments):
        left_out = f" ({found.num_left_out} entries that lead out of it, or are no files, were left out)"
        raise UsageFault(
            f"{text} holds nothing to read{left_out if found.num_left_out else ''}; expected text files or token shards"
        )
    return found


def paths_in(text: str) -> list[Path]:
    """The paths of ``PATH[,PATH...]``; a comma that belongs to the name of something that exists separates nothing.

    Raises:
        UsageFault: there is no home folder for a ``~``.
    """
    parts, paths = text.split(","), []
    while parts:
        whole = (end for end in range(len(parts), 1, -1) if _exists(expanded(",".join(parts[:end]))))
        num_parts = next(whole, 1)
        paths.append(expanded(",".join(parts[:num_parts])))
        del parts[:num_parts]
    return paths


def _exists(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return path.exists()
    return False


def _walk(root: Path, left_out: frozenset[str] = frozenset()) -> Iterator[tuple[str, Path]]:
    """Entries below `root` as (path relative to it, path), sorted by the former; hidden ones are left out."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in left_out and not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                path = Path(folder, name)
                found.append((path.relative_to(root).as_posix(), path))
    return iter(sorted(found))


def _inside(root: Path) -> tuple[list[tuple[str, Path]], int]:
    """Regular files below `root`, and how many entries were left out."""
    real_root = Path(os.path.realpath(root))
    files, num_left_out = [], 0
    for name, path in _walk(root):
        leads_out = path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(real_root)
        if leads_out or not path.is_file():
            num_left_out += 1
        else:
            files.append((name, path))
    return files, num_left_out


class _Reader:
    """Reads small files and maps large ones."""

    def __init__(self) -> None:
        self._num_read_bytes = 0
        self._max_read_bytes = _memory_bytes() // MAX_MEMORY_SHARE

    def load(self, path: Path, dtype: TokenType) -> Tokens:
        """The tokens of one regular file.

        Raises:
            UsageFault: it cannot be read, has half a token at its end, or is one too many for the memory.
        """
        try:
            with open_regular(path) as file:
                num_bytes = os.fstat(file.fileno()).st_size
                if num_bytes % dtype.itemsize:
                    raise UsageFault(
                        f"{path} has {num_bytes} bytes; expected a multiple of {dtype.itemsize} ({dtype.name})"
                    )
                if num_bytes > _MAP_FROM_BYTES or (dtype.itemsize > 1 and num_bytes):
                    return np.memmap(file, dtype, mode="r")
                self._num_read_bytes += num_bytes
                if self._num_read_bytes > self._max_read_bytes:
                    raise UsageFault(
                        f"files up to {path} hold {bytes_text(self._num_read_bytes)} together; expected at most "
                        f"{bytes_text(self._max_read_bytes)}, a quarter of this machine's memory, in files below "
                        f"{bytes_text(_MAP_FROM_BYTES)} each; join them to larger ones, which are not read as a whole"
                    )
                # A file of /proc says that it is empty, and what a growing file got since belongs to no block.
                return np.frombuffer(file.read(num_bytes), dtype)
        except OSError as error:
            hint = "; join the files to fewer, larger ones" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
            raise UsageFault(f"{path} cannot be read ({error.strerror}); expected a readable file{hint}") from error
        except ValueError as error:
            # A file that was cut since, or memory that cannot be mapped.
            raise UsageFault(f"{path} cannot be read ({error}); expected a whole, readable file") from error


def _memory_bytes() -> int:
    return all_memory_bytes() or (4 << 30)  # what a small machine has


def _token_type(path: Path) -> TokenType:
    for suffix, name in ((".u16", "uint16"), (".u32", "uint32")):
        if suffix in path.suffixes[-2:]:
            return _TOKEN_TYPES[name]
    sidecar = path.with_suffix(".json")
    try:
        return _TOKEN_TYPES[json.loads(read_regular(sidecar, _MAX_SIDECAR_BYTES))["dtype"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageFault(
            f"{path} does not say how its tokens are stored; expected the suffix .u16 or .u32, or {sidecar.name} "
            'beside it with {"dtype": "uint16"} or "uint32"'
        ) from error
