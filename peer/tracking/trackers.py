"""Trackers: a CSV file, or a library with the interface of wandb, imported when it is opened."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import re
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from dht.ground.errors import UsageFault
from dht.ground.host import PeerId
from dht.ground.quantities import short_peer
from peer.config.peer_config import PeerConfig, TrackerKind, load_config
from peer.tracking.recorded_rows import OWN_COLUMNS, RUN_COLUMNS, Row

MAX_HEADER_BYTES = 4096
"""Longest header of a CSV file: ten times that of the columns."""


@dataclass(frozen=True, slots=True)
class Record:
    """A series of rows that continues after a restart.

    Attributes:
        run_id: the run; trackers call it a project.
        name: name of the peer or page in the run; the same after a restart.
        folder: folder for files.
        file: the CSV file in it.
        columns: columns of its rows.
    """

    kind: TrackerKind
    run_id: str
    name: str
    folder: str
    file: str
    columns: Sequence[str]


def check_tracker(kind: TrackerKind) -> None:
    """Check that the library of a tracker is installed, without loading it.

    Raises:
        UsageFault: the library is not installed.
    """
    if kind != "csv" and importlib.util.find_spec(kind) is None:
        raise UsageFault(
            f"--track {kind} needs {kind}, which is not installed; expected it, or --track csv, which needs "
            f"no library; run: pip install {kind}"
        )


def own_record(config: PeerConfig, peer_id: PeerId) -> Record | None:
    """Name the record of this peer in its run by the peer's key. None if no tracker was chosen."""
    if config.track is None:
        return None
    name = f"{config.name or 'peer'}-{short_peer(peer_id)}".replace("/", "-")
    return Record(config.track, config.run_id, name, str(config.data_dir.absolute()), "metrics.csv", OWN_COLUMNS)


def run_record(run_id: str, kind: str) -> Record:
    """Name the record of a run.

    Raises:
        UsageFault: there is no such tracker, or its library is not installed.
    """
    for known in get_args(TrackerKind):
        if kind == known:
            check_tracker(known)
            folder = str(load_config({"run_id": run_id}).data_dir)
            return Record(known, run_id, "swarm", folder, "run-metrics.csv", RUN_COLUMNS)
    raise UsageFault(f"--track is {kind!r}; expected one of {', '.join(get_args(TrackerKind))}.")


def open_tracker(record: Record) -> CsvTracker | LibraryTracker:
    """Open the tracker of a record, after the rows of earlier sessions.

    Raises:
        OSError, UsageFault: a file cannot be used.
        Exception: the library raised it.
    """
    if record.kind == "csv":
        return CsvTracker(Path(record.folder) / record.file, record.columns)
    return LibraryTracker(record)


class CsvTracker:
    """Writes a line for each row: its time in UTC (ISO 8601), its step, and its values; unmeasured ones are empty.

    Raises:
        UsageFault: the file exists and has different columns.
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._columns = columns
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Opening a pipe must not block.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._file = os.fdopen(os.open(path, flags, 0o600), "a+b", buffering=0)
        try:
            self._begin(path, ["time", "step", *columns])
        except BaseException:
            self._file.close()
            raise

    def _begin(self, path: Path, header: Sequence[str]) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        self._file.seek(0)
        before = self._file.read(MAX_HEADER_BYTES).partition(b"\n")[0].decode("utf-8", "replace")
        if before not in ("", ",".join(header)):
            raise UsageFault(
                f"{path} begins with {before[:80]!r}; expected {','.join(header)[:80]!r}; move the file away"
            )
        if not before:
            self._line(header)
            return
        self._file.seek(-1, os.SEEK_END)
        if self._file.read(1) != b"\n":
            self._file.write(b"\n")  # a kill or a full disk cut off the last line

    def write(self, row: Row) -> None:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row.at))
        self._line([moment, row.step, *(_short(row.values.get(name)) for name in self._columns)])

    def close(self) -> None:
        self._file.close()

    def _line(self, cells: Sequence[object]) -> None:
        self._file.write((",".join(map(str, cells)) + "\n").encode())


class LibraryTracker:
    """A run of trackio or wandb. After a restart it continues the run of the same name and its row count.

    `trackio show --project RUN` shows the rows of trackio. Those of wandb are in the logged-in account, or in the
    folder with WANDB_MODE=offline.
    """

    def __init__(self, record: Record) -> None:
        library: Any = importlib.import_module(record.kind)
        if record.kind == "wandb":
            run_key = re.sub("[^A-Za-z0-9_-]", "-", f"{record.run_id}-{record.name}")[:64]
            options: dict[str, Any] = {"id": run_key, "dir": record.folder}
        else:
            options = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
        self._run = library.init(project=record.run_id, name=record.name, resume="allow", **options)

    def write(self, row: Row) -> None:
        # Libraries drop rows whose step decreases, and a killed peer restarts from its last checkpoint.
        self._run.log({"steps": row.step, **row.values})

    def close(self) -> None:
        """Store all written rows."""
        self._run.finish()


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.8g}" if value != int(value) else str(int(value))
