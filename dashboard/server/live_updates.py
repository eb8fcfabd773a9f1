"""One rendered snapshot for all viewers, and the server-sent events that keep them up to date.

A viewer needs no queue. It remembers the last version it has and gets what changed since: whole sections, and the
points that the curves grew by. The bytes were encoded once for all viewers at that version. A slow viewer skips
versions and can hold nothing back.
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
"""Browsers wait three seconds by default before they connect again."""
MAX_POINTS_KEPT: Final = 300
"""Of the curves: ten minutes of looks. A viewer that was away for longer reads all points again."""
MAX_KEPT: Final = 32
"""Events made once for all viewers that have the same version and tab: honest ones have one of the last few. All
sections of 300 people take half a megabyte, and anybody may say that they have any version."""
LARGE: Final = ("timeline", "fragments", "rounds", "peers")
"""Sections of tens of kilobytes of which something changes in every look."""
LARGE_SECONDS: Final = 15.0
"""Between two of their changes, which keeps the engine room of 300 people small
(`python -m benchmarks.bench_dashboard bytes`)."""
STEADY_SECONDS: Final = 60.0
"""A curve that does not move gets a point so often."""


@dataclass(frozen=True)
class _Section:
    html: str
    changed_in: int
    event: bytes
    changed_at: float


class Live:
    """The newest state, rendered. `publish` and `close` are called on the event loop and never block.

    Args:
        base: of the addresses of this run's pages, see `rooted`.
        boot_id: differs between two starts of the dashboard, so that a version of an earlier one is never believed.
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
        """Names the present version; what a viewer sends back when it connects."""
        return f"{self._boot_id}-{self.version}"

    @property
    def sections(self) -> dict[str, str]:
        return {key: section.html for key, section in self._sections.items()}

    def publish(self, state: DashboardState, history: HistoryView) -> None:
        """Render `state` and `history` and wake every viewer if that changed anything."""
        self.state = state
        self.history = history
        self.num_published += 1
        found = render_sections(state, self.history)
        rendered = {key: rooted(html, self._base) for key, html in found.items()}
        missed = frozenset(str(row.record.peer_id) for row in state.late)
        # Whoever is not heard any more is so at once in the table of peers too.
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
        """The version a viewer has; 0 when it is of an earlier start or no snapshot id at all."""
        boot_id, _, version = snapshot_id.rpartition("-")
        if boot_id != self._boot_id or not (version.isascii() and version.isdigit()) or len(version) > 18:
            return 0
        return min(int(version), self.version)

    def since(self, version: int, tab: str = "", *, is_whole: bool = False) -> bytes:
        """Returns the events for all that changed after `version`; empty when nothing did.

        Args:
            tab: of `TABS`: only what is to be seen there; empty, or none of them: everything.
            is_whole: all sections, for a viewer that opens a tab for the first time; points as for the others.
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
            # The last event's id is what a viewer comes back with, so it has to be the newest.
            points = self._points_event(version)
            found = b"".join((*(section.event for section in newer), points))
            if len(self._events) < MAX_KEPT:
                self._events[key] = found
        return found

    async def wait_newer(self, version: int, timeout_seconds: float) -> None:
        """Return when there is a version after `version`, when it is closed, or when the time is up."""
        changed = self._changed
        if self.version > version or self.is_closed:
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                await changed.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """End every viewer's stream; without it a server never ends."""
        self.is_closed = True
        self._wake()

    def _new_point(self) -> HistoryPoint | None:
        """The newest point of the curves, when it differs from the one that viewers have."""
        if not self.history.points:
            return None
        point = self.history.points[-1]
        if self._points:
            last = self._points[-1][1]
            if point.at < last.at + STEADY_SECONDS and replace(point, at=0.0) == replace(last, at=0.0):
                return None
        return point

    def _points_event(self, version: int) -> bytes:
        """Columns that the curves grew by; without any, `reset`: the viewer should read all points again."""
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
