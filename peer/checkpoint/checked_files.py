"""Files of a checkpoint: written once from beginning to end with their SHA-256, and never read without checking it.

Tensors are in safetensors files (`tensor_files.py`); the rest is JSON with a checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field

from dht.ground.regular_files import open_regular, read_regular
from peer.config.section import Section

MAX_JSON_BYTES = 16 * 1024 * 1024
"""A model of ten thousand tensors takes about 1 MiB; a longer file is not from this software."""

OpenFile = Callable[[Path], BinaryIO]
"""Creates a file that only its owner can read. Raises OSError."""


class WrittenFile(Section):
    """The expected length and SHA-256 (`digest`, in hexadecimal) of a file."""

    num_bytes: int = Field(ge=0, le=2**63 - 1)
    digest: str = Field(pattern="^[0-9a-f]{64}$")


def open_new(path: Path) -> BinaryIO:
    """Create a file; the default `OpenFile`."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def write_json(path: Path, content: Mapping[str, Any], open_file: OpenFile = open_new) -> WrittenFile:
    """Write a JSON object under `content` with its `check`, without syncing. Raises OSError."""
    data = json.dumps({"content": content, "check": _check_of(content)}, indent=1).encode()
    with open_file(path) as file:
        file.write(data)
    return WrittenFile(num_bytes=len(data), digest=hashlib.sha256(data).hexdigest())


def read_json(path: Path) -> dict[str, Any]:
    """Read the content of a file written by `write_json`.

    Raises:
        ValueError: the file is missing, damaged, or changed.
    """
    found = file_num_bytes(path)
    if found > MAX_JSON_BYTES:
        raise ValueError(f"{path.name} has {found} bytes; expected at most {MAX_JSON_BYTES}")
    try:
        whole = json.loads(read_regular(path, MAX_JSON_BYTES))
        content, check = whole["content"], whole["check"]
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged or from a different version ({type(error).__name__})") from error
    if type(content) is not dict or check != _check_of(content):
        raise ValueError(f"{path.name} was changed: its content does not match its checksum")
    return content


def check_file(path: Path, written: WrittenFile) -> None:
    """Read a whole file, and compare it with its expected length and digest.

    Raises:
        ValueError: the file is missing or differs.
    """
    check_length(path, written)
    if measure_file(path).digest != written.digest:
        raise ValueError(f"{path.name} is damaged: it does not match its SHA-256")


def check_length(path: Path, written: WrittenFile) -> None:
    """Compare only the length of a file. Raises ValueError."""
    num_bytes = file_num_bytes(path)
    if num_bytes != written.num_bytes:
        raise ValueError(f"{path.name} has {num_bytes} bytes; expected {written.num_bytes}")


def measure_file(path: Path) -> WrittenFile:
    """Return the current length and digest of a file.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return WrittenFile(num_bytes=os.fstat(file.fileno()).st_size, digest=digest)
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from error


def file_num_bytes(path: Path) -> int:
    """Return the length of a file. Raises ValueError if the file cannot be read."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from error


def _check_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
