"""All manifest fields that could name something external: their allowed form, and the module that fetches them. Pure.

The threat model shows this table. A test finds text fields that are missing from it, and sets each field to files of a
home folder. Only the modules of this package send requests to servers that a manifest names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class OutsideName:
    """The allowed names in some fields.

    Attributes:
        fields: dotted names of the manifest.
        form: allowed form of the value.
        fetched_by: the module that fetches it; empty if nothing is fetched, opened or looked up.
        credentials: whose credentials are used.
        into: where the fetched data is kept.
        limits: limits of size, time and place.
    """

    fields: tuple[str, ...]
    form: str
    fetched_by: str = ""
    credentials: str = "none"
    into: str = "nothing"
    limits: str = ""


_PUBLIC: Final = "only public servers"
_STEADY: Final = "at least 10 kB/s"
_FROM_MEMBERS: Final = "peer/files/fetching.py"

OUTSIDE_NAMES: Final = (
    OutsideName(("data.source",), "`stdlib:`: text of Python's own library", "peer/trainer/text/source_files.py"),
    OutsideName(
        ("data.source",),
        "`text:`, `jsonl:`, `parquet:`, `tokens:`: a kind of data, provided by each volunteer with `--data`",
        limits="a path after the colon is refused",
    ),
    OutsideName(
        ("data.source",),
        "`hf:ORG/NAME@REVISION`, `/FOLDER`, `:SPLIT`: files of one data set of the hub",
        "peer/sources/hub_files.py",
        "none; the volunteer's login only for `--data`",
        "a copy of one part in the data folder, removed when it is tokenized",
        f"200,000 files, a Parquet footer of 64 MiB, {_STEADY}, 1 GiB of the disk stays free; "
        "HF_HUB_OFFLINE reads the library's cache only for `--data`",
    ),
    OutsideName(
        ("data.source",),
        "`https://HOST/PATH/meta.json`: prepared shards",
        "peer/sources/web_request.py",
        "none",
        "shards in the data folder",
        f"digests and lengths of the manifest, {_PUBLIC}, redirects only to https, meta.json of 16 MiB in 300 s, "
        f"{_STEADY}",
    ),
    OutsideName(
        ("model.init.source",),
        "`hub:ORG/NAME@REVISION`: safetensors files of one model of the hub",
        "peer/sources/hub_files.py",
        "none; a login only for `peer init --model`",
        "the cache of the library",
        "the digest of the manifest, 4 times its `num_bytes`",
    ),
    OutsideName(("model.init.source",), "`folder`: weights provided by each volunteer with `--base`"),
    OutsideName(
        ("model.config",),
        "names of an architecture and its sizes",
        limits="a field that refers to code, kernels or external weights is refused",
    ),
    OutsideName(
        ("files.name",),
        "a plain file name",
        _FROM_MEMBERS,
        "the peer's own key, in a private run",
        "the folder of the run's files",
        "the digest and length of the manifest, 64 MiB each",
    ),
    OutsideName(
        ("page", "changes.page"),
        "the address of a page",
        "peer/sources/web_request.py",
        "none",
        "memory",
        f"{_PUBLIC}, redirects only to the same server and never from https to http, 64 KiB in 10 s; of its "
        "addresses, at most 8 are dialled, and none of this machine",
    ),
    OutsideName(("code",), "an address shown to people"),
    OutsideName(("description", "licence", "changes.note"), "one line of text shown to people"),
    OutsideName(("name",), "a word of a-z, 0-9 and `-`"),
    OutsideName(
        ("model.adapter.targets", "model.frozen"),
        "the name of a part of the model, looked up only in the model",
    ),
    OutsideName(("data.text_field",), "the name of a field, looked up only in a row"),
)
