"""The file of a dashboard that shows several runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dht.errors import UsageFault
from dht.identity.keys import split_run_id

MAX_RUNS: Final = 16
"""Each has a host of its own in the network, of some hundred megabytes."""
EXAMPLE: Final = 'run_id = "tinybytes.abcdefghij234567abcd", peers = ["/ip4/203.0.113.5/tcp/4001/p2p/12D3KooW..."]'
_TEXTS: Final = ("run_id", "invite", "db", "base")
_LISTS: Final = ("peers", "join_addresses")


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One ``[[run]]`` of the file."""

    run_id: str
    peers: tuple[str, ...] = ()
    join_addresses: tuple[str, ...] = ()
    invite: str | None = None
    db: str | None = None
    base: str | None = None
    """Weights that its adapter stands on."""


def read_run_list(path: Path) -> list[ListedRun]:
    """The runs in a TOML file with a ``[[run]]`` for each, in their order.

    Raises:
        UsageFault: the file cannot be read, or an entry is wrong; the sentence names the entry.
    """
    from peer.config.validation import read_toml

    fields = read_toml(path)
    entries = fields.get("run")
    unknown = sorted(fields.keys() - {"run"})
    if unknown or not isinstance(entries, list) or not entries or len(entries) > MAX_RUNS:
        got = f"has {unknown[0]!r}" if unknown else f"names {len(entries) if isinstance(entries, list) else 0} runs"
        raise UsageFault(f"{path} {got}; expected 1 to {MAX_RUNS} entries [[run]] with {EXAMPLE}")
    runs = [_listed(path, number, entry) for number, entry in enumerate(entries, 1)]
    names = [run.run_id for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageFault(f"{path} names {twice} twice; expected each run once; remove one of the entries")
    return runs


def _listed(path: Path, number: int, entry: Any) -> ListedRun:
    where = f"{path}, run {number}"
    if not isinstance(entry, dict) or "run_id" not in entry:
        raise UsageFault(f"{where} has no run_id; expected {EXAMPLE}")
    for name, value in entry.items():
        is_text = name in _TEXTS and isinstance(value, str)
        is_list = name in _LISTS and isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not is_text and not is_list:
            known = name in (*_TEXTS, *_LISTS)
            wanted = "text" if name in _TEXTS else "a list of texts" if known else ", ".join((*_TEXTS, *_LISTS))
            raise UsageFault(f"{where}: {name} is {str(value)[:60]!r}; expected {wanted}")
    try:
        split_run_id(entry["run_id"])
    except UsageFault as fault:
        raise UsageFault(f"{where}: {fault}") from fault
    return ListedRun(
        entry["run_id"],
        tuple(entry.get("peers", ())),
        tuple(entry.get("join_addresses", ())),
        entry.get("invite"),
        entry.get("db"),
        entry.get("base"),
    )
