"""`peer init --file`: the manifest's entries for the owner's files, and copies of them for members to fetch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from averaging.wire.file_chunks import MAX_FILE_BYTES
from dht.ground.errors import LocalFault, UsageFault, reading
from dht.ground.regular_files import read_regular, write_whole
from peer.config.allowed_files import FileSection
from peer.config.manifest import RunManifest
from peer.config.validation_sentences import explain
from peer.files.checked_folder import files_folder, measure_file, objection_to


def with_files(fields: Mapping[str, Any], paths: Sequence[Path]) -> dict[str, Any]:
    """Return the fields of a manifest with the files at `paths` added to its `files`, each under its base name.

    A file that `fields` lists already must be identical. `keep_files` copies the files after the manifest was made. No
    other field is checked here.

    Raises:
        UsageFault: a file cannot be read, is empty or too long, or has an invalid name, or two have the same name.
    """
    if not paths:
        return dict(fields)
    listed = list(before) if isinstance(before := fields.get("files"), list | tuple) else []
    for path in paths:
        described = describe_file(path).model_dump(mode="json")
        same_name = [one for one in listed if isinstance(one, Mapping) and one.get("name") == described["name"]]
        if same_name and dict(same_name[0]) != described:
            raise UsageFault(
                f"the file {path}: the run already has a different file named {described['name']}; expected one file "
                "with this name"
            )
        if not same_name:
            listed.append(described)
    return {**fields, "files": listed}


def describe_file(path: Path) -> FileSection:
    """Make the manifest's entry for one file.

    Raises:
        UsageFault: the file cannot be read, is empty or too long, or has an invalid name.
    """
    with reading(f"the file {path}"):
        num_bytes = os.stat(path).st_size
        if path.is_file() and not 0 < num_bytes <= MAX_FILE_BYTES:
            raise UsageFault(
                f"the file {path}: it has {num_bytes} bytes; expected 1 to {MAX_FILE_BYTES}; publish a larger file "
                "elsewhere and refer to it from the run"
            )
        try:
            return measure_file(path, path.name).file
        except ValidationError as error:
            raise UsageFault(f"the file {path}: {explain(error, FileSection)} Rename it.") from error


def check_at_hand(data_dir: Path | None, manifest: RunManifest, paths: Sequence[Path]) -> None:
    """Check, before a key is made, that every file of the run is at one of `paths` or is kept in this folder already.

    Raises:
        UsageFault: a file is missing.
    """
    names = {path.name for path in paths}
    for file in manifest.files:
        if file.name in names:
            continue
        if data_dir is None or objection_to(files_folder(data_dir, manifest) / file.name, file):
            raise UsageFault(
                f"the run lists the file {file.name}, which was not given; expected every listed file, so that "
                f"members can fetch it; give it with --file PATH/{file.name} (in Python files)"
            )


def keep_files(data_dir: Path, manifest: RunManifest, paths: Sequence[Path]) -> None:
    """Copy the run's files from `paths` to where members fetch them, each whole or not at all.

    Raises:
        UsageFault: a file can no longer be read, or has changed since the manifest was made.
        LocalFault: the folder cannot be written, or the disk is full.
    """
    sources = {path.name: path for path in paths}
    for file in manifest.files:
        target = files_folder(data_dir, manifest) / file.name
        if not objection_to(target, file):
            continue
        source = sources[file.name]
        with reading(f"the file {source}"):
            content = read_regular(source, MAX_FILE_BYTES)
        try:
            write_whole(target, content)
        except OSError as error:
            raise LocalFault(
                f"{target} cannot be written: {error.strerror}; expected a writable folder with {file.bytes} bytes of "
                "free space; no run was signed"
            ) from error
        if objection_to(target, file):
            raise UsageFault(
                f"the file {source}: it changed while it was copied; expected a file that does not change; try again"
            )
