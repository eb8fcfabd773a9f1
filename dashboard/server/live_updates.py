"""One rendered snapshot for all viewers, and server-sent events that keep them up to date.

Viewers need no queues. Each remembers its last version and gets the changes since: whole sections, and new points of
the curves, encoded once for all viewers at that version. A slow viewer skips versions and delays nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from dashboard.history.thinned_curves import columns_of
from dashboard.history_facts import HistoryPoint, HistoryView
from dashboard.observe.dashboard_state import DashboardState
from dashboard.page.page import TABS, render_sections, rooted

RETRY_MILLISECONDS: Final = 1000
"""Reconnection delay; by default browsers wait three seconds."""
MAX_POINTS_KEPT: Final = 300
"""Points of the curves kept: ten minutes of observations. A viewer that was away for longer reads all points again."""
MAX_KEPT: Final = 32
"""Cached events for viewers with the same version and tab: honest viewers have one of the last few. All sections of 300
people take half a megabyte, and anyone may claim any version."""
LARGE: Final = ("timeline", "fragments", "rounds", "peers")
"""Sections of tens of kilobytes that change at each observation."""
LARGE_SECONDS: Final = 15.0
"""Seconds between two updates of them, which keeps the engine room of 300 people small (`python -m
benchmarks.bench_dashboard bytes`)."""
STEADY_SECONDS: Final = 60.0
"""Interval of points on an unchanged curve."""


@dataclass(frozen=True)
class _Section:
    html: str
    changed_in: int
    event: bytes
    changed_at: float


class Live:
    """The newest state, rendered. `publish` and `close` are called on the event loop and never block.

    Args:
        base: path of this run's pages, see `rooted`.
        boot_id: differs between starts of the dashboard, so that versions of an earlier start are recognised.
    """

    def __init__(self, state: DashboardState, boot_id: str, history: HistoryView, base: str = "") -> None:
        self.state = state
        self.history = history
        self.version = 0
        self.num_published = 0
        self.is_closed = False
        self._boot_id = boot_id
        self._base = base
        self._sections: dict[str, _Section] = {}
        self._points: deque[tuple[int, HistoryPoint]] = deque(maxlen=MAX_POINTS_KEPT)
        self._events: dict[tuple[int, str, bool], bytes] = {}
        self._missed: frozenset[str] = frozenset()
        self._changed = asyncio.Event()
        self.publish(state, history)

    @property
    def snapshot_id(self) -> str:
        """Identifies the present version; a viewer sends it when it connects."""
        return f"{self._boot_id}-{self.version}"

    @property
    def sections(self) -> dict[str, str]:
        return {key: section.html for key, section in self._sections.items()}

    def publish(self, state: DashboardState, history: HistoryView) -> None:
        """Render `state` and `history`, and wake all viewers if anything changed."""
        self.state = state
        self.history = history
        self.num_published += 1
        found = render_sections(state, self.history)
        rendered = {key: rooted(html, self._base) for key, html in found.items()}
        missed = frozenset(str(row.record.peer_id) for row in state.late)
        # A peer that becomes unresponsive is shown so in the table of peers at once.
        at_once = ("peers",) if missed - self._missed else ()
        self._missed = missed
        changed = {key: html for key, html in rendered.items() if self._is_due(key, html, at_once)}
        point = self._new_point()
        if not changed and point is None:
            return
        self.version += 1
        self._events.clear()
        if point is not None:
            self._points.append((self.version, point))
        for key, html in changed.items():
            self._sections[key] = _Section(html, self.version, self._event(key, html), state.now)
        self._wake()

    def version_of(self, snapshot_id: str) -> int:
        """Return a viewer's version; 0 if the snapshot id is invalid or of an earlier start."""
        boot_id, _, version = snapshot_id.rpartition("-")
        if boot_id != self._boot_id or not (version.isascii() and version.isdigit()) or len(version) > 18:
            return 0
        return min(int(version), self.version)

    def since(self, version: int, tab: str = "", *, is_whole: bool = False) -> bytes:
        """Return the events for all changes after `version`; empty if there are none.

        Args:
            tab: a key of `TABS`: only its sections; otherwise all.
            is_whole: send all sections, to a viewer that opens a tab for the first time; points as otherwise.
        """
        wanted = {"status", *TABS[tab]} if tab in TABS else None
        key = version, tab if wanted is not None else "", is_whole
        found = self._events.get(key)
        if found is None:
            newer = [
                section
                for name, section in self._sections.items()
                if (is_whole or section.changed_in > version) and (wanted is None or name in wanted)
            ]
            newer.sort(key=lambda section: section.changed_in)
            # A viewer reconnects with the last event's id, so that must be the newest.
            points = self._points_event(version)
            found = b"".join((*(section.event for section in newer), points))
            if len(self._events) < MAX_KEPT:
                self._events[key] = found
        return found

    async def wait_newer(self, version: int, timeout_seconds: float) -> None:
        """Wait until there is a version after `version`, the object is closed, or the time is up."""
        changed = self._changed
        if self.version > version or self.is_closed:
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                await changed.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """End the streams of all viewers, so that the server can stop."""
        self.is_closed = True
        self._wake()

    def _new_point(self) -> HistoryPoint | None:
        """Return the newest point of the curves if it differs from the viewers' last one."""
        if not self.history.points:
            return None
        point = self.history.points[-1]
        if self._points:
            last = self._points[-1][1]
            if point.at < last.at + STEADY_SECONDS and replace(point, at=0.0) == replace(last, at=0.0):
                return None
        return point

    def _points_event(self, version: int) -> bytes:
        """Return the new columns of the curves or, without them, `reset`: the viewer should read all points again."""
        newer = [point for changed_in, point in self._points if changed_in > version]
        if not newer or version >= self.version:
            return b""
        if version == 0 or (len(newer) == MAX_POINTS_KEPT and self._points[0][0] > version + 1):
            content: dict[str, object] = {"reset": True}
        else:
            names, columns = columns_of(newer, "time")
            content = {"reset": False, "names": names, "columns": columns}
        data = json.dumps(content, separators=(",", ":"))
        return f"id: {self.snapshot_id}\nevent: points\ndata: {data}\n\n".encode()

    def _is_due(self, key: str, html: str, at_once: Collection[str]) -> bool:
        section = self._sections.get(key)
        if section is None or section.html == html:
            return section is None
        return key not in LARGE or key in at_once or abs(self.state.now - section.changed_at) >= LARGE_SECONDS

    def _event(self, key: str, html: str) -> bytes:
        data = json.dumps({"section": key, "html": html}, separators=(",", ":"))
        return f"id: {self.snapshot_id}\nevent: section\ndata: {data}\n\n".encode()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
