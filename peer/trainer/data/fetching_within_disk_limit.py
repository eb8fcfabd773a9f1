"""Fetches groups of data in the background during training, within a limit on disk space.

If there is no room for the next group, the groups requested longest ago are removed. The stock's thread only proposes
the removal. The reader permits it (`Stock.let_go`) between two batches, so no group is removed before it is read.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from dht.ground.errors import LocalFault, UsageFault
from dht.ground.quantities import bytes_text
from peer.trainer.text.source_files import DISK_KEPT_BYTES

T = TypeVar("T")

PAUSES_SECONDS = (1.0, 5.0, 20.0, 60.0)
"""Pauses after the first failures of a group; the last pause repeats. A server restarts within a minute."""
FIRST_TRIES = 3
"""Number of retries for data that training needs to begin."""
FAILED_TOGETHER = 3
"""Number of different groups that failed in a row before their source counts as down, until a group arrives."""


def patiently(action: Callable[[], T], note: Callable[[str], None], pause: Callable[[float], None] = time.sleep) -> T:
    """Return the result of `action`; retry a few times after a LocalFault, each time with a sentence to `note`.

    Raises:
        UsageFault: the data is wrong, and a retry would not help.
        LocalFault: the data cannot be fetched.
    """
    for seconds in PAUSES_SECONDS[:FIRST_TRIES]:
        try:
            return action()
        except UsageFault:
            raise
        except LocalFault as error:
            note(f"data cannot be fetched now: {error}; trying again in {seconds:g} s")
            pause(seconds)
    return action()


class GroupFiles(Protocol):
    """The files of groups on the disk."""

    @property
    def folder(self) -> Path:
        """The folder of this data only; each other data set has its own folder beside it."""

    @property
    def num_groups(self) -> int: ...

    @property
    def lasting_bytes(self) -> int:
        """Bytes of files that stay and belong to no group: the held-out data."""

    def bring(self, group: int) -> None:
        """Fetch a group, and return when it is on the disk. The stock's thread calls this method.

        Raises:
            LocalFault: the group cannot be fetched now.
        """

    def bytes_here(self, group: int) -> int | None:
        """Return the bytes of the group's files; None if the group is not on the disk."""

    def bytes_expected(self, group: int) -> int | None:
        """Return the expected bytes of an absent group; None if they are not known in advance."""

    def remove(self, group: int) -> None:
        """Delete the group's files."""


class Stock:
    """Fetches requested groups, one after the other, in its own thread.

    Args:
        note: receives a sentence when a group cannot be fetched, when fetching works again, and when the limit is too
            small.
        limit_bytes: limit for all data in the parent folder, as exact as lengths are known; None: the disk's free
            space.

    Attributes:
        is_full: a group had to be removed before another group arrived.
        failing: groups whose last fetch failed. Each is reported once.
    """

    def __init__(self, files: GroupFiles, note: Callable[[str], None], limit_bytes: int | None = None) -> None:
        self._files = files
        self._note = note
        self._limit_bytes = limit_bytes
        self._asked: Sequence[int] | None = None
        self._wanted: list[int] = []
        self._here: dict[int, int] = {}  # bytes of each group, the one requested longest ago first
        self._is_counted = False
        self._others: list[tuple[Path, int]] = []
        self._pinned: set[int] = set()
        self._leaving: list[int] = []
        self.is_full = False
        self._num_failures = 0
        self._failed_in_a_row: set[int] = set()
        self.failing: set[int] = set()
        self._has_complained = False
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def pin(self, group: int) -> None:
        """Keep this group regardless of the limit, because it contains held-out text."""
        self._pinned.add(group)

    def want(self, groups: Sequence[int]) -> None:
        """Request these groups in this order, replacing the previous request."""
        with self._changed:
            if groups == self._asked:
                return
            if not self._is_counted:
                self._is_counted = True
                sizes = ((group, self._files.bytes_here(group)) for group in range(self._files.num_groups))
                self._here = {group: size for group, size in sizes if size is not None}
                self._others = _other_data(self._files.folder)
            self._asked = groups
            for group in reversed(groups):
                if group in self._here:
                    self._here[group] = self._here.pop(group)
            self._wanted = [group for group in groups if group not in self._here]
            self._leaving = []
            if self._thread is None and self._wanted:
                self._thread = threading.Thread(target=self._work, name="data", daemon=True)
                self._thread.start()
            self._changed.notify()

    def let_go(self) -> Sequence[int]:
        """Delete the groups that have to make room, and return them.

        The caller must not read positions that it chose before this call.
        """
        if not self._leaving:
            return ()
        with self._changed:
            gone, self._leaving = self._leaving, []
            for group in gone:
                self._files.remove(group)
                self._here.pop(group, None)
            self._changed.notify()
        return gone

    def lose(self, group: int) -> None:
        """Delete a group whose files have changed; it is fetched again when requested."""
        with self._changed:
            self._files.remove(group)
            self._here.pop(group, None)
            self._asked = None

    def close(self) -> None:
        """Stop fetching, and report no error about an interrupted fetch."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and (not self._wanted or self._leaving or not self._has_room(self._next())):
                    self._changed.wait(PAUSES_SECONDS[-1])  # the user may free some disk space
                if self._is_closed:
                    return
                group = self._next()
            try:
                self._files.bring(group)
            except LocalFault as error:
                if self._is_closed:
                    return
                if self._num_failures == 0 and group not in self.failing:
                    self._note(f"data cannot be fetched now: {error}; training continues with the local data")
                pause = PAUSES_SECONDS[min(self._num_failures, len(PAUSES_SECONDS) - 1)]
                self._num_failures += 1
                self._failed_in_a_row.add(group)
                self.failing.add(group)
                with self._changed:
                    self._changed.wait(pause)
                continue
            with self._changed:
                self._here[group] = self._files.bytes_here(group) or 0
                self._wanted = [one for one in self._wanted if one != group]
            self._num_failures = 0
            if group in self.failing:
                self.failing.clear()  # the cause of this failure may have affected the other groups
                self._note("data arrives again")
            elif len(self._failed_in_a_row) >= FAILED_TOGETHER:
                self._note("data arrives again")
            self._failed_in_a_row.clear()

    def _next(self) -> int:
        # After a failure, try a different group first, so that a broken group does not block the rest.
        return self._wanted[self._num_failures % len(self._wanted)]

    def _has_room(self, group: int) -> bool:
        """Return whether there is room to fetch a group; if not, propose groups for removal."""
        needed = self._files.bytes_expected(group) or max(self._here.values(), default=1 << 20)
        while (excess := self._used() + needed - self._limit()) > 0 and self._others:
            shutil.rmtree(self._others.pop(0)[0], ignore_errors=True)
        if excess <= 0:
            return True
        self.is_full = True
        asked = list(self._asked or ())
        # Remove groups needed later to make room for groups needed sooner.
        sooner = set(asked[: asked.index(group) + 1]) if group in asked else set(asked)
        leaving: list[int] = []
        for one, size in self._here.items():
            if excess > 0 and one not in sooner and one not in self._pinned:
                leaving.append(one)
                excess -= size
        if excess <= 0:
            self._leaving = leaving
        elif not self._has_complained:
            self._has_complained = True
            self._note(
                f"data takes {bytes_text(self._used())} of the {bytes_text(self._limit())} that it may use on this "
                f"disk; expected room for {bytes_text(needed)} more; training continues with the local data; raise "
                "--data-limit-gib, or free some disk space"
            )
        return False

    def _used(self) -> int:
        of_others = sum(size for _, size in self._others)
        return sum(self._here.values()) + self._files.lasting_bytes + of_others

    def _limit(self) -> int:
        free = 1 << 60
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(self._files.folder).free
        on_disk = max(0, self._used() + free - DISK_KEPT_BYTES)
        return on_disk if self._limit_bytes is None else min(self._limit_bytes, on_disk)


def _other_data(own: Path) -> list[tuple[Path, int]]:
    """List (folder, bytes) of data that is no longer read (from other sources or earlier text), oldest first."""
    found = []
    with contextlib.suppress(OSError):
        for folder in own.parent.iterdir():
            if folder == own or folder.is_symlink() or not re.fullmatch("[0-9a-f]{8}|[0-9a-f]{16}", folder.name):
                continue
            size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
            found.append((folder.stat().st_mtime, folder, size))
    return [(folder, size) for _, folder, size in sorted(found)]
