"""Finds the files that belong to a split of a data set on the hub, by their names. Pure.

The rules are the hub's own rules for data sets without a table of configurations. A README is not read, and a loading
script is never run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dht.ground.errors import UsageFault
from dht.ground.fields import clean_text

FORMATS: Final = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
}
"""File suffix -> format."""
PACKINGS: Final = (".gz", ".zst")

_KEYWORDS: Final = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_IGNORED: Final = (
    "README.md",
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "dummy_data.zip",
)
_SHARDED: Final = re.compile(r"data/(?P<split>[^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The files of a split, in order, all of one format.

    Attributes:
        form: parquet, jsonl or text.
        packing: .gz, .zst, or empty.
    """

    paths: tuple[str, ...]
    form: str
    packing: str


def files_of_split(paths: Sequence[str], folder: str, split: str) -> SplitFiles:
    """Find the files of a split, by the names of files and folders.

    Args:
        paths: paths of all files of the repository.
        folder: the folder whose files are read; empty: the whole repository.

    Raises:
        UsageFault: there is no such folder or split, its files have no supported format, or they are in several folders
            whose names do not show which belong together.
    """
    start = f"{folder}/" if folder else ""
    inside = [path for path in paths if path.startswith(start) and path.rpartition("/")[2] not in _IGNORED]
    if folder and not inside:
        raise UsageFault(f"the data set has no folder {folder!r}; expected one of its folders ({_folders(paths)})")
    splits = _by_names(inside, start)
    if not splits.get(split):
        has = ", ".join(sorted(key for key, found in splits.items() if found)[:20]) or "none with files"
        raise UsageFault(f"the data set has no split {split!r}; expected one of its splits ({clean_text(has, 200)})")
    found = _of_one_form(splits[split])
    if not folder and len({path.partition("/")[0] for path in found.paths if "/" in path}) > 1:
        raise UsageFault(
            f"its files are in several folders; expected hf:ID@REVISION/FOLDER with one of {_folders(found.paths)}"
        )
    return found


def _folders(paths: Sequence[str]) -> str:
    """Return the first folders that have files, for people."""
    folders = sorted({path.rpartition("/")[0] for path in paths if "/" in path})
    return clean_text(", ".join(folders[:20]), 300) or "none"


def _by_names(paths: Sequence[str], start: str) -> dict[str, list[str]]:
    """Return split -> files, by the names of files and folders after `start`."""
    inside = [path.removeprefix(start) for path in paths]
    sharded: dict[str, list[str]] = {}
    for path, name in zip(paths, inside, strict=True):
        if (found := _SHARDED.fullmatch(name)) is not None:
            sharded.setdefault(found["split"], []).append(path)
    if sharded:
        return sharded
    in_folders = [name.rpartition("/")[0].split("/") for name in inside]
    in_files = [[name.rpartition("/")[2]] for name in inside]
    for places, ends in ((in_folders, True), (in_files, False)):
        splits = {
            split: [path for path, names in zip(paths, places, strict=True) if _has_word(names, words, ends=ends)]
            for split, words in _KEYWORDS.items()
        }
        if any(splits.values()):
            return splits
    return {"train": list(paths)}


def _has_word(names: Sequence[str], words: Sequence[str], *, ends: bool) -> bool:
    """Return whether a name contains one of the words between separators; `ends`: also at its end."""
    pattern = rf"(?:^|[-._ 0-9])(?:{'|'.join(words)})(?:[-._ 0-9]{'|$' if ends else ''})"
    return any(re.search(pattern, name) for name in names)


def _of_one_form(paths: Sequence[str]) -> SplitFiles:
    forms = {path: known for path in paths if (known := _form_of(path)) is not None}
    if not forms:
        has = ", ".join(sorted({path.rpartition("/")[2] for path in paths})[:5])
        raise UsageFault(
            f"its files ({clean_text(has, 200)}) cannot be read; expected Parquet, JSON lines or text "
            "(.txt); a loading script is never run"
        )
    (usual, _), *_ = Counter(forms.values()).most_common(1)
    form, packing = usual
    if packing and form in ("parquet", "text"):
        raise UsageFault(f"its files are compressed ({form}{packing}); expected plain files; unpack them")
    return SplitFiles(tuple(sorted(path for path, known in forms.items() if known == usual)), form, packing)


def _form_of(path: str) -> tuple[str, str] | None:
    lower = path.lower()
    packing = next((ending for ending in PACKINGS if lower.endswith(ending)), "")
    bare = lower.removesuffix(packing)
    return next(((form, packing) for ending, form in FORMATS.items() if bare.endswith(ending)), None)
