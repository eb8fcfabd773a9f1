"""`peer init --file`: what the manifest says of the owner's files, and copies of them for members to fetch."""

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
    """Fields of a manifest with the files at `paths` added to its `files`, each by the last part of its path.

    A file that `fields` lists already must be the same. `keep_files` copies them, once the manifest was made. Nothing
    but `files` is looked at here.

    Raises:
        UsageFault: a file cannot be read, is empty or too long, its name cannot be used, or two have one name.
    """
    if not paths:
        return dict(fields)
    listed = list(before) if isinstance(before := fields.get("files"), list | tuple) else []
    for path in paths:
        described = describe_file(path).model_dump(mode="json")
        same_name = [one for one in listed if isinstance(one, Mapping) and one.get("name") == described["name"]]
        if same_name and dict(same_name[0]) != described:
            raise UsageFault(
                f"the file {path}: the run has another file of the name {described['name']} already; expected it once, "
                "with one content"
            )
        if not same_name:
            listed.append(described)
    return {**fields, "files": listed}


def describe_file(path: Path) -> FileSection:
    """What a manifest says of one file.

    Raises:
        UsageFault: it cannot be read, is empty or too long, or its name cannot be used.
    """
    with reading(f"the file {path}"):
        num_bytes = os.stat(path).st_size
        if path.is_file() and not 0 < num_bytes <= MAX_FILE_BYTES:
            raise UsageFault(
                f"the file {path}: it has {num_bytes} bytes; expected 1 to {MAX_FILE_BYTES}; larger ones belong to a "
                "place of their own, which the run can name"
            )
        try:
            return measure_file(path, path.name).file
        except ValidationError as error:
            raise UsageFault(f"the file {path}: {explain(error, FileSection)} Rename it.") from error


def check_at_hand(data_dir: Path | None, manifest: RunManifest, paths: Sequence[Path]) -> None:
    """Before a key is made: every file of the run is at one of `paths`, or kept in this folder already.

    Raises:
        UsageFault: one is not.
    """
    names = {path.name for path in paths}
    for file in manifest.files:
        if file.name in names:
            continue
        if data_dir is None or objection_to(files_folder(data_dir, manifest) / file.name, file):
            raise UsageFault(
                f"the run lists the file {file.name}, which is not here; expected it, so that members can fetch it; "
                f"give it with --file PATH/{file.name} (in Python files)"
            )


def keep_files(data_dir: Path, manifest: RunManifest, paths: Sequence[Path]) -> None:
    """Copy the run's files from `paths` to where members fetch them, each whole or not at all.

    Raises:
        UsageFault: one cannot be read any more, or has changed since the manifest was made.
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
            raise UsageFault(f"the file {source}: it changed while it was copied; expected a file at rest; try again")
