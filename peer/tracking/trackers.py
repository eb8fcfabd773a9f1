"""Each kind of tracker behind one interface. All but csv need a library, which is imported when it is opened."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import stat
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, get_args

from dht.ground.errors import UsageFault
from dht.ground.host import PeerId
from dht.ground.quantities import short_peer
from peer.config.peer_config import PeerConfig, TrackerKind, load_config
from peer.tracking.recorded_rows import OWN_COLUMNS, RUN_COLUMNS, Row

_BLOCK_BYTES = 64 * 1024
"""More than a row of any tracker takes, in its file and in the journal beside it."""
MAX_HEADER_BYTES = 4096
"""Of a CSV file: ten times what the columns take."""

LIBRARIES: Final = ("trackio", "tensorboard", "wandb")
"""Kinds that are a library of that name."""


@dataclass(frozen=True, slots=True)
class Record:
    """A series of rows that goes on after a restart.

    Attributes:
        run_id: the run; trackers call it a project.
        name: of the recorder in it; the same after a restart.
        folder: for files.
        file: the CSV file in it.
        columns: of its rows.
        counts_on: a session whose steps begin lower than the last one ended counts on from there.
    """

    kind: TrackerKind
    run_id: str
    name: str
    folder: str
    file: str
    columns: Sequence[str]
    counts_on: bool = False


class Tracker(Protocol):
    """Takes rows."""

    def write(self, row: Row) -> None: ...

    def close(self) -> None:
        """Nothing that was written is lost after it."""


def check_tracker(kind: TrackerKind) -> None:
    """Whether the library of a tracker is there, without loading it.

    Raises:
        UsageFault: it is not installed.
    """
    if kind in LIBRARIES and importlib.util.find_spec(kind) is None:
        raise UsageFault(
            f"--track {kind} needs {kind}, which is not installed here; expected it, or --track csv, which needs "
            f"nothing; run: pip install {kind}"
        )


def own_record(config: PeerConfig, peer_id: PeerId) -> Record | None:
    """The record of this peer in its run, which its key gives; None: no tracker was chosen."""
    if config.track is None:
        return None
    name = f"{config.name or 'peer'}-{short_peer(peer_id)}".replace("/", "-")
    folder = str(config.data_dir.absolute())
    return Record(config.track, config.run_id, name, folder, "metrics.csv", OWN_COLUMNS, counts_on=True)


def run_record(run_id: str, kind: str) -> Record:
    """The record of a run.

    Raises:
        UsageFault: there is no such tracker, or its library is not installed.
    """
    for known in get_args(TrackerKind):
        if kind == known:
            check_tracker(known)
            folder = str(load_config({"run_id": run_id}).data_dir)
            return Record(known, run_id, "swarm", folder, "run-metrics.csv", RUN_COLUMNS)
    raise UsageFault(f"--track is {kind!r}; expected one of {', '.join(get_args(TrackerKind))}.")


def open_tracker(record: Record) -> Tracker:
    """The tracker of a record, at the end of what earlier sessions wrote.

    Raises:
        OSError, UsageFault: a file cannot be used.
        Exception: of the library.
    """
    match record.kind:
        case "csv":
            return CsvTracker(Path(record.folder) / record.file, record.columns)
        case "tensorboard":
            return TensorboardTracker(record)
        case "trackio":
            return _trackio(record)
    return _wandb(record)


class CsvTracker:
    """A line for each row: its time in UTC (ISO 8601), its step, and its values; what was not measured is empty.

    Raises:
        UsageFault: the file is there and has other columns.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._columns = columns
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A pipe there must not hold it up.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._file = os.fdopen(os.open(path, flags, 0o600), "a+b", buffering=0)
        try:
            self._begin(path, ["time", "step", *columns])
        except BaseException:
            self._file.close()
            raise

    def _begin(self, path: Path, header: Sequence[str]) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
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
            self._file.write(b"\n")  # a kill, or a full disk, cut the last line off

    def write(self, row: Row) -> None:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row.at))
        self._line([moment, row.step, *(_short(row.values.get(name)) for name in self._columns)])

    def close(self) -> None:
        self._file.close()

    def _line(self, cells: Sequence[object]) -> None:
        self._file.write((",".join(map(str, cells)) + "\n").encode())


class TensorboardTracker:
    """Event files in ``tensorboard/NAME``; ``tensorboard --logdir FOLDER/tensorboard`` shows all of a folder."""

    def __init__(self, record: Record) -> None:
        from tensorboard.summary import Writer

        self._writer: Any = Writer(str(Path(record.folder) / "tensorboard" / record.name))

    def write(self, row: Row) -> None:
        for name, value in row.values.items():
            self._writer.add_scalar(name, value, step=row.step, wall_time=row.at)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class LoggingTracker:
    """What trackio and wandb have in common.

    Args:
        run: has `log` and `finish`.
    """

    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, row: Row) -> None:
        self._run.log(dict(row.values), step=row.step)

    def close(self) -> None:
        self._run.finish()


class TrackioTracker(LoggingTracker):
    """Project and run of trackio, which writes from a thread of its own and keeps failures of the disk to itself.

    Args:
        folder: where trackio writes.

    Raises:
        OSError: nothing can be written there.
    """

    def __init__(self, run: Any, folder: Path) -> None:
        super().__init__(run)
        self._folder = folder

    def write(self, row: Row) -> None:
        check_takes_files(self._folder)
        super().write(row)


def check_takes_files(folder: Path) -> None:
    """Write a block into a folder and take it away again.

    Raises:
        OSError: nothing can be written there; it names the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(_BLOCK_BYTES))
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; expected a folder that can be written", str(folder)) from error


def _trackio(record: Record) -> LoggingTracker:
    """Project and run of trackio; ``trackio show --project RUN`` shows it."""
    import trackio
    from trackio.utils import TRACKIO_DIR

    check_takes_files(Path(TRACKIO_DIR))
    trackio.init(
        project=record.run_id, name=record.name, resume="allow", auto_log_gpu=False, auto_log_cpu=False, embed=False
    )
    return TrackioTracker(trackio, Path(TRACKIO_DIR))


def _wandb(record: Record) -> LoggingTracker:
    """Project and run of wandb, of the account that is logged in there, or offline with WANDB_MODE=offline."""
    import wandb

    name = re.sub("[^A-Za-z0-9_-]", "-", f"{record.run_id}-{record.name}")
    return LoggingTracker(
        wandb.init(project=record.run_id, name=record.name, id=name[:64], resume="allow", dir=record.folder)
    )


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.8g}" if value != int(value) else str(int(value))
