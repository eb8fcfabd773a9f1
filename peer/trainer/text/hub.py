"""Rows of a data set of the Hugging Face hub at one revision, through the `datasets` library; nothing of it is run.

What the library has in its cache is read from there, also without a network (`HF_HUB_OFFLINE=1`). Otherwise rows are
streamed, and only those that are asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dht.errors import LocalFault, UsageFault
from peer.extras import missing_extra

_FORM = re.compile(r"hf:(?P<id>[^@]+)@(?P<revision>[^/:]+)(?:/(?P<config>[^:]+))?(?::(?P<split>.+))?")


@dataclass(frozen=True, slots=True)
class HubSource:
    """``hf:ID@REVISION[/CONFIG][:SPLIT]`` in its parts."""

    name: str
    revision: str
    config: str | None
    split: str


def hub_source(source: str) -> HubSource:
    """Parse a source whose form was checked before (`peer.config.data_source.HUB_PATTERN`)."""
    match = _FORM.fullmatch(source)
    if match is None:
        raise UsageFault(f"{source} is no data set; expected hf:ID@REVISION, with /CONFIG and :SPLIT where needed")
    return HubSource(match["id"], match["revision"], match["config"], match["split"] or "train")


def num_hub_rows(source: str) -> int:
    """Rows of the split.

    Raises:
        UsageFault: there is no such data set, or it does not say how many rows it has.
        LocalFault: the library is missing, or the hub cannot be reached.
    """
    asked = hub_source(source)
    rows = _open(source)
    if hasattr(rows, "num_rows"):
        return int(rows.num_rows)
    splits = getattr(getattr(rows, "info", None), "splits", None) or {}
    found = splits.get(asked.split)
    if found is None or not found.num_examples:
        raise UsageFault(
            f"{source} does not say how many rows it has; expected a data set with metadata; download it and use "
            "`peer data prepare`"
        )
    return int(found.num_examples)


def hub_rows(source: str, start: int, stop: int) -> Iterator[Any]:
    """Rows `start` to `stop`, each a dictionary.

    Raises:
        UsageFault, LocalFault: as `num_hub_rows`.
    """
    rows = _open(source)
    try:
        if hasattr(rows, "num_rows"):
            yield from rows.select(range(start, min(stop, rows.num_rows)))
        else:
            yield from rows.skip(start).take(stop - start)
    except Exception as error:
        # Whatever a library of a library raises when a line breaks.
        raise _unavailable(source, error) from error


def _open(source: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise missing_extra(f"reading {source}", "datasets", "hf", error) from error
    asked = hub_source(source)
    choices = {"name": asked.config, "split": asked.split, "revision": asked.revision}
    is_offline = os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON")
    try:
        found: Any = datasets.load_dataset(asked.name, streaming=not is_offline, **choices)
        pictures = [name for name, kind in (getattr(found, "features", None) or {}).items() if _is_picture(kind)]
        for name in pictures:
            # As they are stored: they are decoded here, with limits.
            found = found.cast_column(name, datasets.Image(decode=False))
        return found
    except Exception as error:  # The hub's, HTTP's and the system's own classes.
        raise _unavailable(source, error) from error


def _is_picture(kind: object) -> bool:
    return type(kind).__name__ == "Image"


def _unavailable(source: str, error: Exception) -> LocalFault:
    text = " ".join(str(error).split())[:200] or type(error).__name__
    return LocalFault(
        f"{source} cannot be read ({text}); expected a data set of the hub, or of the cache with HF_HUB_OFFLINE=1; "
        "check id, revision, config and split, and the network"
    )
