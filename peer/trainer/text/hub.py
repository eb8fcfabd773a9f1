"""Rows of a data set of the Hugging Face hub at one revision, through the `datasets` library; nothing of it is run.

What the library has in its cache is read from there, also without a network (`HF_HUB_OFFLINE=1`). Otherwise rows are
streamed, and of Parquet files only those that are asked for.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Iterator
from typing import Any

from dht.errors import LocalFault, UsageFault
from peer.optional_libraries import needing

_FORM = re.compile(r"hf:(?P<path>[^@]+)@(?P<revision>[^/:]+)(?:/(?P<name>[^:]+))?(?::(?P<split>.+))?")

ROWS_PER_PART = 2000
"""Bytes are not known in advance: 1 to 10 MB of usual documents."""
WHOLE_FILE_PARTS = 8
"""Of a file that is no Parquet, at most: it is streamed from its beginning for each of them."""


def is_offline() -> bool:
    """Whether the person wants what the library has in its cache, and no network."""
    return os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON")


def hub_parts(source: str, max_parts: int) -> list[tuple[int, int]]:
    """What `hub_rows` takes, for each part of the split, in order.

    Of the library's cache: (first row, last row + 1). Of a stream: (number of the part, how many there are), the same
    for everybody. Such a part is whole files or lies in one, because a row in the middle of a stream costs all that is
    before it.

    Raises:
        UsageFault: there is no such data set.
        LocalFault: the library is missing, or the hub cannot be reached.
    """
    rows = _open(source)
    if hasattr(rows, "num_rows"):
        num_rows = int(rows.num_rows)
        size = max(ROWS_PER_PART, -(-num_rows // max_parts))
        return [(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]
    try:
        num_files = int(rows.num_shards)
        num_groups = _by_row_groups(rows.shard(num_files, 0, contiguous=True)).num_shards
    except Exception as error:  # See `hub_rows`.
        raise _unavailable(source, error) from error
    parts_of_file = max(1, min(num_groups if num_groups > 1 else WHOLE_FILE_PARTS, max_parts // num_files))
    num_parts = min(num_files * parts_of_file, max_parts)
    splits = getattr(getattr(rows, "info", None), "splits", None) or {}
    known = splits.get(_choices(source)["split"])
    if known is not None and known.num_examples:
        enough = -(-int(known.num_examples) // ROWS_PER_PART)
        num_parts = min(num_parts, enough if enough <= num_files else num_files * -(-enough // num_files))
    return [(number, num_parts) for number in range(num_parts)]


def hub_rows(source: str, start: int, stop: int) -> Iterator[Any]:
    """Rows of a part (`hub_parts`), each a dictionary.

    Raises:
        UsageFault, LocalFault: as `hub_parts`, or the data set is not what it was.
    """
    rows = _open(source)
    try:
        if hasattr(rows, "num_rows"):
            yield from rows.select(range(start, min(stop, rows.num_rows)))
        else:
            yield from _streamed(source, rows, start, stop)
    except LocalFault:
        raise
    except Exception as error:
        # Whatever a library of a library raises when a line breaks.
        raise _unavailable(source, error) from error


def _streamed(source: str, rows: Any, number: int, num_parts: int) -> Iterator[Any]:
    num_files = int(rows.num_shards)
    if num_parts <= num_files:
        yield from rows.shard(num_parts, number, contiguous=True)
        return
    if num_parts % num_files:
        raise LocalFault(
            f"{source} has {num_files} files now; expected a number that divides {num_parts}, as when it was opened; "
            "restart to read what is there now"
        )
    parts_of_file = num_parts // num_files
    file, part = divmod(number, parts_of_file)
    groups = _by_row_groups(rows.shard(num_files, file, contiguous=True))
    if groups.num_shards < parts_of_file:
        yield from itertools.islice(groups, part, None, parts_of_file)
    else:
        yield from groups.shard(parts_of_file, part, contiguous=True)


def _by_row_groups(rows: Any) -> Any:
    """The same rows, with a shard for each row group of a Parquet file."""
    return rows.reshard() if hasattr(rows, "reshard") else rows


def _open(source: str) -> Any:
    with needing(f"reading {source}", "datasets", "hf"):
        import datasets
    for library in ("datasets", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # what they would print is in the sentence below
    try:
        found: Any = datasets.load_dataset(**_choices(source), streaming=not is_offline())
        for name, kind in (getattr(found, "features", None) or {}).items():
            if type(kind).__name__ == "Image":
                # As they are stored: they are decoded here, with limits.
                found = found.cast_column(name, datasets.Image(decode=False))
        return found
    except datasets.exceptions.FileNotFoundDatasetsError as error:  # The hub says that there is none.
        raise UsageFault(str(_unavailable(source, error))) from error
    except Exception as error:  # The hub's, HTTP's and the system's own classes.
        raise _unavailable(source, error) from error


def _choices(source: str) -> dict[str, str | None]:
    """What the library is asked for; the form was checked before (`peer.config.data_source.HUB_PATTERN`)."""
    match = _FORM.fullmatch(source)
    if match is None:
        raise UsageFault(f"{source} is no data set; expected hf:ID@REVISION, with /CONFIG and :SPLIT where needed")
    return {**match.groupdict(), "split": match["split"] or "train"}


def _unavailable(source: str, error: Exception) -> LocalFault:
    text = " ".join(str(error).split())[:200] or type(error).__name__
    return LocalFault(
        f"{source} cannot be read ({text}); expected a data set of the hub, or of the cache with HF_HUB_OFFLINE=1; "
        "check id, revision, config and split, and the network"
    )
