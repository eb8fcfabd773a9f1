"""`peer status`: prints a run as seen from outside."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

from rich.cells import cell_len
from rich.table import Table

from dht.ground.quantities import count_text, loss_text, share_text, state_text
from dht.identity.speakable import speakable_name
from dht.observer.host_choice import HostBackend
from dht.records.peer_record import PeerRecord
from dht.records.swarm_view import SwarmView
from peer.config.learning_rate_schedule import progress_of, rate_factor
from peer.config.manifest import RunManifest
from peer.console.plain_console import console_of_output
from peer.console.progress import tell_progress
from peer.network.membership.manifest_revisions import cooldown_at
from peer.observe.observer import observe
from peer.observe.observer_entry import observer_entry
from peer.observe.run_and_address import Target
from peer.view.run_view import MEMBER_FIGURES, RunView, plain, run_view_of


def show_status(target: Target, as_json: bool, timeout_seconds: float, backend: HostBackend) -> int:
    """Print the run, its peers, versions, rates and losses. Return the exit code.

    Raises:
        NobodyReachable: no member answered in time.
    """
    run_id = target.run_id
    manifest, records, view = asyncio.run(_read(target, timeout_seconds, backend))
    if as_json:
        print(json.dumps(status_facts(run_id, manifest, records, time.time(), view)))
    else:
        _print_table(run_id, manifest, records, view)
    return 0


def read_manifest(target: Target, timeout_seconds: float, backend: HostBackend) -> RunManifest:
    """Return the signed manifest of a live run.

    Raises:
        NobodyReachable: no member answered in time.
    """
    return asyncio.run(_read(target, timeout_seconds, backend))[0]


_NEEDLESS = ("device", "tokens/s", "rounds")
"""Columns left out if a terminal is too narrow, in this order."""


async def _read(
    target: Target, timeout_seconds: float, backend: HostBackend
) -> tuple[RunManifest, list[PeerRecord], RunView]:
    entry = observer_entry(target.run_id, target.observer_folder)
    tell_progress(f"asking members of {target.run_id}, for {timeout_seconds:.0f} s at most")
    async with observe(target.run_id, target.addresses, timeout_seconds, backend, entry) as observer:
        records = await observer.records()
        return observer.manifest, records, await observer.run_view(records)


def status_facts(
    run_id: str,
    manifest: RunManifest,
    records: list[PeerRecord],
    now: float,
    view: RunView | None = None,
) -> dict[str, Any]:
    """Return the status as plain values.

    Args:
        view: the run's figures; None: computed from `records` alone.
    """
    view = run_view_of(records) if view is None else view
    view = replace(view, versions=view.versions or (0,) * manifest.num_fragments)
    differing = SwarmView(run_id).merge(records, now).differing(now)
    schedule = manifest.training.schedule
    clock = view.committed_tokens
    return {
        "schema": 1,
        "run_id": run_id,
        "manifest_hash": manifest.hash.hex(),
        "mode": manifest.averaging.mode,
        "model_kind": manifest.model.kind,
        "code": manifest.code,
        "files": [{"name": file.name, "bytes": file.bytes, "digest": file.digest} for file in manifest.files],
        **view.to_json(),
        "budget_tokens": schedule.tokens,
        "progress": progress_of(schedule, clock),
        "learning_rate_factor": rate_factor(schedule, clock, cooldown_at(manifest, min(view.versions, default=0))),
        "tokens_reported": sum(record.tokens for record in view.electors),
        "peers": [
            {
                **{name: plain(getattr(record, name)) for name in MEMBER_FIGURES},
                "digests": [digest.hex() for digest in record.digests],
                "differing_fragments": list(differing.get(record.peer_id, ())),
                "seconds_in_run": max(0.0, now - record.started_at),
            }
            for record in records
        ],
    }


def _print_table(run_id: str, manifest: RunManifest, records: list[PeerRecord], view: RunView | None = None) -> None:
    view = run_view_of(records) if view is None else view
    facts = status_facts(run_id, manifest, records, time.time(), view)
    console = console_of_output()
    loss = "not measured by any member"
    if view.evaluation is not None:
        loss = loss_text(view.evaluation.loss, manifest.loss_unit)
    done = f"{count_text(facts['committed_tokens'])} tokens"
    if facts["progress"] is not None:
        done += f", {share_text(facts['progress'])} of {count_text(facts['budget_tokens'])}"
    console.print(
        f"{run_id}  trainers {facts['num_training']}  "
        f"versions {'/'.join(str(version) for version in facts['versions'])}  {done}  "
        f"learning rate {share_text(facts['learning_rate_factor'])} of the peak  "
        f"validation loss {loss}"
    )
    if manifest.own_code_hint:
        console.tell(f"Its model is from its owner's own code: {manifest.own_code_hint}")
    if not records:
        hint = "" if manifest.own_code_hint else f" Start one with: peer join --run-id {run_id}"
        console.tell(f"No peer is in the run now.{hint}")
        return
    differing = {peer["peer_id"]: peer["differing_fragments"] for peer in facts["peers"]}
    columns: dict[str, list[str]] = {
        "peer": [record.name or speakable_name(record.peer_id) for record in records],
        "state": [state_text(record.state, record.role) for record in records],
        "device": [record.device for record in records],
        "versions": [
            "/".join(
                f"{version}{'!' * (fragment in differing[record.peer_id])}"
                for fragment, version in enumerate(record.versions)
            )
            for record in records
        ],
        "tokens": [count_text(record.tokens) for record in records],
        "tokens/s": [count_text(record.tokens_per_second) for record in records],
        "rounds": [str(record.rounds_contributed) for record in records],
        "loss": [loss_text(record.train_loss) for record in records],
    }
    widths = {title: max(map(cell_len, (title, *cells))) + 1 for title, cells in columns.items()}
    for title in _NEEDLESS:
        if sum(widths.values()) > console.width:
            del columns[title], widths[title]
    table = Table(box=None, pad_edge=False)
    for title in columns:
        is_text = title in ("peer", "state", "device", "versions")
        # Cells that are still too wide continue on the next line, so that they can be read completely.
        fold = title == "versions"
        table.add_column(
            title,
            justify="left" if is_text else "right",
            no_wrap=not fold,
            overflow="fold" if fold else "ellipsis",
        )
    for row in range(len(records)):
        table.add_row(*(cells[row] for cells in columns.values()))
    console.print(table)
    if any(differing.values()):
        console.print("! a different anchor from most of the signed work; the peer downloads this fragment again")
    num_electors = facts["num_electors"]
    if num_electors < len(records):
        told = f"{num_electors} of {len(records)} members have work in signed rounds; the first line covers only these."
        console.tell(told, style="dim", highlight=False)
    console.print("Figures are reported by the peers themselves.", style="dim")
