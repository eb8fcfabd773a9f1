"""The file of a dashboard that shows several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from dht.ground.errors import UsageFault
from dht.identity.keys import split_run_id

MAX_RUNS: Final = 16
"""Each run needs a separate network host, of some hundred megabytes."""
EXAMPLE: Final = 'run_id = "tinybytes.abcdefghij234567abcd", peers = ["/ip4/203.0.113.5/tcp/4001/p2p/12D3KooW..."]'


class ListedRun(BaseModel):
    """A ``[[run]]`` of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    peers: tuple[str, ...] = ()
    join_addresses: tuple[str, ...] = ()
    invite: str | None = None
    db: str | None = None
    base: str | None = None
    """Base weights of the run's adapter."""


class _RunList(BaseModel):
    model_config = ConfigDict(extra="forbid")

    run: tuple[ListedRun, ...] = ()


def read_run_list(path: Path) -> tuple[ListedRun, ...]:
    """Return the runs in a TOML file with a ``[[run]]`` for each, in their order.

    Raises:
        UsageFault: the file cannot be read, or an entry is wrong; the sentence names the entry.
    """
    from peer.config.validation_sentences import explain, read_toml

    try:
        runs = _RunList.model_validate(read_toml(path)).run
    except ValidationError as error:
        raise UsageFault(f"{path}: {explain(error, _RunList)}") from error
    if not 0 < len(runs) <= MAX_RUNS:
        raise UsageFault(f"{path} lists {len(runs)} runs; expected 1 to {MAX_RUNS} entries [[run]] with {EXAMPLE}")
    names = [run.run_id for run in runs]
    for number, name in enumerate(names):
        try:
            split_run_id(name)
        except UsageFault as fault:
            raise UsageFault(f"{path}: run.{number}.run_id: {fault}") from fault
        if names.count(name) > 1:
            raise UsageFault(f"{path} lists {name} twice; expected each run once; remove one of the entries")
    return runs
