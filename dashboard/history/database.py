"""The history's SQLite file: its tables, and the checks before its use, which change nothing."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeVar

from dashboard.history_facts import HistoryPoint
from dht.ground.errors import LocalFault, UsageFault, reading
from dht.ground.regular_files import open_regular

Value = TypeVar("Value")

MEMORY: Final = ":memory:"
"""SQLite's own name for a database without a file."""
APPLICATION_ID: Final = 0x4D55524D
"""Mark of these files in SQLite's file header ("MURM")."""
SCHEMA_VERSION: Final = 6

POINT_COLUMNS: Final = tuple(field.name for field in fields(HistoryPoint))
MACHINE_COLUMNS: Final = ("peer_id", "contributor_key", "device", "name", "first_at", "last_at", "uptime_seconds")
"""The first fields of `MachineTotals`."""
TABLES: Final = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE receipts (id INTEGER PRIMARY KEY, seen_at REAL NOT NULL, credit TEXT NOT NULL, raw BLOB NOT NULL);
CREATE TABLE points (place INTEGER PRIMARY KEY, {", ".join(POINT_COLUMNS)});
CREATE TABLE machines ({", ".join(MACHINE_COLUMNS)}, PRIMARY KEY (peer_id)) WITHOUT ROWID;
CREATE TABLE profiles (contributor_id TEXT PRIMARY KEY, facts TEXT NOT NULL) WITHOUT ROWID
"""
"""`receipts`: each signed commit and its credit. `points`: one for each ten seconds. `machines` and `profiles`: this
dashboard's observations of them. `meta`: lists of some hundred rows as JSON, and single values. All other data is
computed from these at each start."""


class Database:
    """A connection used by one thread, one transaction or query at a time."""

    def __init__(self, path: Path | None) -> None:
        place = MEMORY if path is None else str(path)
        self._connection = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")

    async def do(self, work: Callable[..., Value], *values: Any) -> Value:
        """Run `work(connection, *values)` and return its result. When cancelled, the work still finishes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._connection, *values)

    async def close(self) -> None:
        """Close the connection after all work."""
        await self.do(sqlite3.Connection.close)
        self._thread.shutdown()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write all statements inside, or none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A full disk may have ended the transaction.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_file(path: Path, run_id: str, wait_seconds: float = 5.0) -> bool:
    """Return whether the file is a history of `run_id` (False: it is new or empty). Changes nothing.

    Args:
        wait_seconds: time to wait for another program that locks the file.

    Raises:
        UsageFault: the file is not a history, belongs to another run, or cannot be opened (exit code 2).
        LocalFault: the file is damaged, or newer software wrote it (exit code 1).
    """
    with reading(f"the history {path}", "your own file; give another with --db"):
        if not path.exists() or (path.is_file() and path.stat().st_size == 0):
            check_folder(path)
            return False
        if path.is_dir():
            raise UsageFault(f"{path} is a folder; expected a file for the history; give one with --db")
        with open_regular(path) as file:
            head = file.read(16)
    if head != b"SQLite format 3\0":
        raise UsageFault(
            f"{path} is not a database (it begins with {head[:8]!r}); expected a dashboard's history or a new file; "
            "give another with --db"
        )
    check_folder(path)
    try:
        address = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, wait_seconds, uri=True)) as database:
            _check_content(database, path, run_id)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:  # a query that this file cannot answer
            raise damaged(path, error) from error
        remedy = "close the other program that uses it" if is_locked(error) else "check its disk and its folder"
        raise UsageFault(
            f"the history {path} cannot be opened ({error}); expected a file that no other program uses; {remedy}, or "
            "give another with --db"
        ) from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise damaged(path, error) from error
    return True


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether another program has locked the file."""
    return "locked" in str(error)


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Lock the history for this process, and make it readable only by its owner. The end of the process releases the
    lock.

    Raises:
        UsageFault: another process has locked it, or the folder is not writable.
    """
    # A separate file: closing any descriptor of the database itself would release SQLite's own locks on it.
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageFault(
            f"the folder of the history {path} cannot be written ({error.strerror or error}); expected a writable "
            "folder; give another file with --db"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageFault(
                f"the history {path} is in use by another dashboard; expected one writer; end that dashboard or give "
                "another file with --db"
            ) from error
        _make_private(path)
        yield
    finally:
        os.close(descriptor)


def _make_private(path: Path) -> None:
    """Create the file if needed, and give mode 0600 to it and SQLite's files beside it, which take its mode.

    SQLite has no open file yet, so closing a descriptor releases none of its locks.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}.lock"):
        with contextlib.suppress(OSError):  # missing, another user's, or a file system without modes
            place = path.with_name(name)
            if stat.S_IMODE(place.stat().st_mode) & 0o077:
                place.chmod(0o600)


def check_folder(path: Path) -> None:
    """Check the folder of a history's file.

    Raises:
        UsageFault: the folder does not exist, or is not writable.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageFault(
            f"the folder {folder} of the history does not exist; create it, or give another file with --db"
        )
    if not os.access(folder, os.W_OK):
        raise UsageFault(f"{folder} cannot be written; expected a writable folder; give another file with --db")


def _check_content(database: sqlite3.Connection, path: Path, run_id: str) -> None:
    (application_id,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application_id != APPLICATION_ID:
        raise UsageFault(
            f"{path} is a database of another program; expected a dashboard's history; give another file with --db"
        )
    if version > SCHEMA_VERSION:
        raise LocalFault(
            f"the history {path} has schema {version}, written by newer software; this version reads up to "
            f"{SCHEMA_VERSION}; update this software, or give another file with --db"
        )
    if 0 < version < SCHEMA_VERSION:
        raise LocalFault(
            f"the history {path} has schema {version} of earlier software; this version reads {SCHEMA_VERSION}; it "
            "was not changed; move it away or give another file with --db: a new history begins with members' data"
        )
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise damaged(path, str(verdict))
    found = database.execute("SELECT value FROM meta WHERE name = 'run_id'").fetchone()
    if found is None or found[0] != run_id:
        other = f"run {found[0]}" if found else "no run"
        raise UsageFault(f"the history {path} belongs to {other}; expected {run_id}; give another file with --db")


def damaged(path: Path, found: str | Exception) -> LocalFault:
    """Return the error for a file whose content SQLite cannot read.

    SQLite's message can quote the file's bytes. If they are not text, Python raises `UnicodeDecodeError` instead.
    """
    detail = "its texts are not UTF-8" if isinstance(found, UnicodeDecodeError) else str(found)
    return LocalFault(
        f"the history {path} is damaged ({detail.splitlines()[0][:120]}); it was not changed; move it away or "
        "replace it with a copy: a new history begins with what members still have"
    )
