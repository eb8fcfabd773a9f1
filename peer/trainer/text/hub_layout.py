"""Which files of a data set of the hub are a split: by the table of its README, or by their names. Pure.

The rules are those of the hub itself, for what usual data sets have. A loading script is never run, and a name that
leads out of the repository is refused.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from dht.ground.errors import UsageFault
from dht.ground.fields import clean_text

FORMATS: Final = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
}
"""Ending of a file -> how it is read."""
PACKINGS: Final = (".gz", ".zst")

_MAX_PATTERNS: Final = 10_000
_DEFAULT: Final = "default"
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
    """The files of a split, in order, all of one form.

    Attributes:
        form: parquet, jsonl or text.
        packing: .gz, .zst, or empty.
    """

    paths: tuple[str, ...]
    form: str
    packing: str


def files_of_split(paths: Sequence[str], card: Mapping[str, Any], name: str | None, split: str) -> SplitFiles:
    """The files of a split.

    Args:
        paths: of all files of the repository.
        card: what its README says about itself; of a stranger.
        name: of a configuration; None: the one that the README says is the usual one.

    Raises:
        UsageFault: there is no such configuration or split, or its files are of no form that is read.
    """
    kept = [path for path in paths if path.rpartition("/")[2] not in _IGNORED]
    section = _configuration(card, name)
    folder = _text(section.get("data_dir")).strip("/")
    inside = [path for path in kept if not folder or path.startswith(f"{folder}/")]
    if section.get("data_files") is None:
        splits = _by_names(inside, folder)
    else:
        patterns = _patterns_of(section["data_files"])
        start = f"{folder}/" if folder else ""
        splits = {
            key: [path for path in kept if any(_matches(path, start + pattern) for pattern in wanted)]
            for key, wanted in patterns.items()
        }
    if not splits.get(split):
        has = ", ".join(sorted(key for key, found in splits.items() if found)[:20]) or "none with files"
        raise UsageFault(f"it has no split {split!r}; expected one of its splits ({clean_text(has, 200)})")
    return _of_one_form(splits[split])


def _configuration(card: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    listed = card.get("configs")
    sections = {
        _text(one.get("config_name")) or _DEFAULT: one
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict) and (one.get("data_files") is not None or one.get("data_dir") is not None)
    }
    if name is None:
        usual = [key for key, one in sections.items() if one.get("default") is True]
        usual += [key for key in sections if key == _DEFAULT or len(sections) == 1]
        if usual or not sections:
            return sections[usual[0]] if usual else {}
    elif name in sections:
        return sections[name]
    elif not sections and name == _DEFAULT:
        return {}
    has = clean_text(", ".join(list(sections)[:20]), 300) or "none"
    got = "its README names several configurations" if name is None else f"it has no configuration {name!r}"
    raise UsageFault(f"{got}; expected hf:ID@REVISION/CONFIG with one of {has}")


def _patterns_of(named: Any) -> dict[str, list[str]]:
    """Split -> patterns of `data_files`, in any of the forms that the hub takes."""
    if isinstance(named, list) and any(isinstance(one, dict) for one in named):
        pairs = [(one.get("split"), one.get("path")) for one in named if isinstance(one, dict)]
    elif isinstance(named, dict):
        pairs = list(named.items())
    else:
        pairs = [("train", named)]
    found: dict[str, list[str]] = {}
    for split, patterns in pairs:
        for pattern in patterns if isinstance(patterns, list) else [patterns]:
            found.setdefault(_text(split) or "train", []).append(_checked(pattern))
    if sum(map(len, found.values())) > _MAX_PATTERNS:
        raise UsageFault(f"its README names more than {_MAX_PATTERNS} patterns of files; expected fewer")
    return found


def _checked(pattern: Any) -> str:
    if not isinstance(pattern, str) or len(pattern) > 500 or "://" in pattern or "::" in pattern or "\\" in pattern:
        raise UsageFault(f"its README names files elsewhere ({_shown(pattern)}); expected files of the repository")
    parts = pattern.removeprefix("./").split("/")
    if ".." in parts or pattern.startswith(("/", "~")):
        raise UsageFault(f"its README names files elsewhere ({_shown(pattern)}); expected files of the repository")
    return "/".join(parts)


def _shown(value: Any) -> str:
    return clean_text(str(value)[:80], 80)


def _text(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= 500 else ""


def _matches(path: str, pattern: str) -> bool:
    """Whether a path fits a pattern, in which `**` stands for any number of folders."""
    names, wanted = path.split("/"), pattern.split("/")
    if wanted[-1] == "**":
        wanted = [*wanted, "*"]

    @cache
    def fits(at: int, of: int) -> bool:
        if of == len(wanted):
            return at == len(names)
        if wanted[of] == "**":
            return fits(at, of + 1) or (at < len(names) and fits(at + 1, of))
        return at < len(names) and fnmatch.fnmatchcase(names[at], wanted[of]) and fits(at + 1, of + 1)

    return fits(0, 0)


def _by_names(paths: Sequence[str], folder: str) -> dict[str, list[str]]:
    """Split -> files, by the names of files and folders."""
    start = len(folder) + 1 if folder else 0
    inside = [path[start:] for path in paths]
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
    """Whether a name has one of the words between separators; `ends`: also at its end."""
    pattern = rf"(?:^|[-._ 0-9])(?:{'|'.join(words)})(?:[-._ 0-9]{'|$' if ends else ''})"
    return any(re.search(pattern, name) for name in names)


def _of_one_form(paths: Sequence[str]) -> SplitFiles:
    forms = {path: known for path in paths if (known := _form_of(path)) is not None}
    if not forms:
        has = ", ".join(sorted({path.rpartition("/")[2] for path in paths})[:5])
        raise UsageFault(
            f"its files ({clean_text(has, 200)}) are none that can be read; expected Parquet, JSON lines or text "
            "(.txt); a loading script is never run"
        )
    (usual, _), *_ = Counter(forms.values()).most_common(1)
    form, packing = usual
    if packing and form in ("parquet", "text"):
        raise UsageFault(f"its files are packed ({form}{packing}); expected plain ones; unpack them")
    return SplitFiles(tuple(sorted(path for path, known in forms.items() if known == usual)), form, packing)


def _form_of(path: str) -> tuple[str, str] | None:
    lower = path.lower()
    packing = next((ending for ending in PACKINGS if lower.endswith(ending)), "")
    bare = lower.removesuffix(packing)
    return next(((form, packing) for ending, form in FORMATS.items() if bare.endswith(ending)), None)
