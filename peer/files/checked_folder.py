"""Location of a run's files in a data folder, and checks of these files.

    DATA_DIR/files/0123456789abcdef/tokenizer.json

The name of the middle folder is a digest of all names and digests in the manifest. So one folder holds the files of one
manifest and nothing older. A library that reads a whole folder finds nothing that the run does not know.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from averaging.wire.file_chunks import FILE_CHUNK_BYTES, MAX_FILE_BYTES
from dht.ground.errors import LocalFault
from dht.ground.regular_files import open_regular
from peer.config.allowed_files import FileSection
from peer.config.manifest import RunManifest

FILES_NAME = "files"
"""In the data folder."""


def files_folder(data_dir: Path, manifest: RunManifest) -> Path:
    """Return the folder for the fetched files of this manifest. It may not exist yet."""
    return data_dir / FILES_NAME / _key_of(manifest.files)


def run_file_path(data_dir: Path, manifest: RunManifest, name: str) -> Path:
    """Check the digest of one file of the run, and return its path.

    Raises:
        LocalFault: the run has no such file, or the file is missing or differs from the manifest.
    """
    for file in manifest.files:
        if file.name == name:
            path = files_folder(data_dir, manifest) / name
            if objection := objection_to(path, file):
                raise LocalFault(
                    f"{path} {objection}; expected the file that the run's manifest describes; start this peer again"
                )
            return path
    known = ", ".join(file.name for file in manifest.files) or "none"
    raise LocalFault(f"the run has no file {name[:80]!r}; expected one of its files: {known}")


def checked_folder(data_dir: Path, manifest: RunManifest) -> Path:
    """Check every file in the manifest and return `files_folder`, for a library that reads a folder.

    Raises:
        LocalFault: a file is missing or differs from the manifest.
    """
    for file in manifest.files:
        run_file_path(data_dir, manifest, file.name)
    return files_folder(data_dir, manifest)


@dataclass(frozen=True, slots=True)
class Measured:
    """A file's manifest entry, and the BLAKE3 digest of each of its chunks."""

    file: FileSection
    chunk_digests: tuple[bytes, ...]


def missing_files(data_dir: Path, manifest: RunManifest) -> list[FileSection]:
    """Read every file and return those that are missing or differ from the manifest."""
    folder = files_folder(data_dir, manifest)
    return [file for file in manifest.files if objection_to(folder / file.name, file)]


def objection_to(path: Path, file: FileSection) -> str:
    """Describe the fault of the file at `path` as the end of a sentence; empty if the file matches the manifest."""
    try:
        num_bytes = os.stat(path).st_size
        if num_bytes != file.bytes:
            return f"has {num_bytes} bytes, not {file.bytes}"
        found = measure_file(path, file.name)
    except (OSError, ValueError) as error:
        return f"cannot be read ({getattr(error, 'strerror', None) or error})"
    return "" if found.file == file else "is a different file: it does not match its digest"


def measure_file(path: Path, name: str) -> Measured:
    """Read a whole file, one chunk at a time.

    Args:
        name: the file's name in the manifest.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is empty or too long for a file of a run, or its name is invalid.
    """
    digests, num_bytes = [], 0
    with open_regular(path) as opened:
        while num_bytes <= MAX_FILE_BYTES and (chunk := opened.read(FILE_CHUNK_BYTES)):
            digests.append(blake3(chunk).digest())
            num_bytes += len(chunk)
    digest = digests[0] if len(digests) == 1 else blake3(b"".join(digests)).digest()
    return Measured(FileSection(name=name, bytes=num_bytes, digest=digest.hex()), tuple(digests))


def forget_others(data_dir: Path, manifest: RunManifest) -> None:
    """Delete the files of earlier manifests from this data folder, once all files of this one are there.

    Files that cannot be deleted stay; they do no harm.
    """
    here = files_folder(data_dir, manifest)
    for folder in (data_dir / FILES_NAME).glob("*"):
        if folder != here and re.fullmatch("[0-9a-f]{16}", folder.name) and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)


def _key_of(files: Sequence[FileSection]) -> str:
    listed = sorted((file.name, file.digest) for file in files)
    return hashlib.sha256(json.dumps(listed, separators=(",", ":")).encode()).hexdigest()[:16]
