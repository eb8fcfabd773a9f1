"""The runs in which a person takes part, from the data folders on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dht.ground.errors import LocalFault, UsageFault
from dht.ground.quantities import seconds_text
from peer.config.peer_config import load_config
from peer.data_folder.folder_lock import last_use_of, read_holder_of
from peer.data_folder.run_folders import SEED, folders_of, known_places
from peer.observe.ended_run import end_in
from peer.observe.kept_manifest import manifest_here
from peer.observe.run_names import every_run_here, has_owner_key
from peer.observe.run_page import ask_page
from peer.observe.running_peer import name_in
from peer.user_folders import expanded

PAGE_HERE_SECONDS = 3.0
"""Time for a dashboard on this machine to answer; a busy one takes a second."""


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run and the facts in its folder.

    Attributes:
        held_by: the process that runs there now, in words; None: none.
        last_at: unix seconds of the last event of a peer here; None: there was none.
        is_owner: whether the run's owner key is there.
        has_ended: whether the owner has signed an end, and a peer here has reached the last version.
        fault: why the folder cannot be read; empty: it can. With a fault, `held_by` and `last_at` are unknown.
    """

    run_id: str
    folder: Path
    held_by: str | None
    last_at: float | None
    is_owner: bool
    page: str | None
    has_ended: bool = False
    fault: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the facts as plain values."""
        return {**asdict(self), "folder": str(self.folder)}


def own_runs(run_id: str) -> list[OwnRun]:
    """Return the default folder of a run, those of additional peers on this machine, and those given by hand."""
    first, *others = (own_run(run_id, folder) for folder in folders_of(run_id))
    is_known = first.held_by or first.last_at or first.is_owner or first.fault
    return [first, *others] if is_known or not known_places(run_id) else others


def own_run(run_id: str, data_dir: Path | None = None) -> OwnRun:
    """Return the facts about a run on this machine, which need not exist; `data_dir`: instead of the default folder."""
    config = load_config({"run_id": run_id, "data_dir": data_dir})
    folder: Path = config.data_dir
    held_by, last_at, fault = None, None, ""
    try:
        held_by = read_holder_of(folder)
        last_at = config.event_log_path.stat().st_mtime
    except FileNotFoundError:
        pass  # no peer of this folder has written a log yet
    except OSError as error:
        fault = error.strerror or str(error)
    manifest = manifest_here(config.run_record_path, run_id)
    page = None if manifest is None else manifest.page_address
    end = None if manifest is None else end_in(manifest, run_id, folder, "stored here")
    return OwnRun(
        *(run_id, folder, held_by, last_at, has_owner_key(folder), page),
        has_ended=end is not None and end.is_over,
        fault=fault,
    )


def find_page(run_id: str, usual_port: int) -> str:
    """Return the page of a run: the one in its manifest, or the page of a dashboard on this machine.

    Raises:
        UsageFault: there is no page.
    """
    if (page := own_run(run_id).page) is not None:
        return page
    address = f"http://127.0.0.1:{usual_port}"
    if is_page_here(run_id, address):
        return address
    raise UsageFault(
        f"No page of {run_id} is known: its manifest contains none, and {address} does not show this run; ask its "
        "owner for the address, or serve a page: `peer dashboard RUN`."
    )


def is_page_here(run_id: str, address: str) -> bool:
    """Return whether a dashboard of this run answers at a local address; a private one does not state its run."""
    try:
        return ask_page(address, PAGE_HERE_SECONDS).run_id == run_id
    except LocalFault:
        return False


def run_lines(runs: Sequence[OwnRun], width: int | None = None) -> list[str]:
    """Return a heading and one line for each run; empty columns are left out.

    Folders are shown if one of them is not the default folder. If a line does not fit into `width` columns, each run
    has separate lines, because a truncated page address cannot be copied. None: any width fits.
    """
    rows = [("run", "peer", "state", "folder", "owner", "page")]
    are_usual = all(run.folder.name == run.run_id for run in runs)
    for run in runs:
        folder = "" if are_usual else str(run.folder)
        state = _state(run, time.time())
        rows.append((run.run_id, _peer_of(run), state, folder, "you" if run.is_owner else "", run.page or ""))
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(f"{cell:<{wide}}" for cell, wide in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]
    if width is None or max(map(len, lines)) <= width:
        return lines
    lines = []
    for run_id, peer, state, folder, owner, page in rows[1:]:
        told = (peer, state, folder, "you own it" if owner else "", page)
        lines += [run_id, *(f"  {one}" for one in told if one)]
    return lines


def _peer_of(run: OwnRun) -> str:
    """Return the role of this folder's peer, now or when it last ran, and its name."""
    last = last_use_of(run.folder)
    part = "" if last is None else "seed" if last == SEED else "trainer"
    return f"{part} {name_in(run.folder)}".strip()


def _state(run: OwnRun, now: float) -> str:
    if run.fault:
        state = f"cannot be read ({run.fault})"
    elif run.held_by is not None:
        state = f"running now ({run.held_by})"
    elif run.last_at is not None:
        state = f"last active {seconds_text(round(max(0.0, now - run.last_at)))} ago"
    elif last_use_of(run.folder) is not None:
        state = "stopped before it joined"
    else:
        state = "never joined from here"
    return f"ended, {state}" if run.has_ended else state


def own_folders(run_id: str | None, data_dir: str | None) -> list[Path]:
    """Return data folders on this machine: only `data_dir`, or those of a run, or of all runs.

    Raises:
        UsageFault: `data_dir` is not a folder.
    """
    if data_dir is not None:
        if not expanded(data_dir).is_dir():
            raise UsageFault(f"{data_dir} is not a folder; expected the data folder of a peer; check --data-dir.")
        return [expanded(data_dir)]
    return [one.folder for named in ([run_id] if run_id else every_run_here()) for one in own_runs(named)]
