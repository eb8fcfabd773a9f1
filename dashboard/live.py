"""One rendered snapshot for all viewers, and the server-sent events that keep them up to date.

A viewer needs no queue: it remembers the last version it has and gets every section that changed since, as bytes that
were encoded once. A slow viewer skips versions and can hold nothing back.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Final

from dashboard.history_types import HistoryPoint, HistoryView
from dashboard.page import render_sections
from dashboard.state import DashboardState

RETRY_MILLISECONDS: Final = 1000
"""Browsers wait three seconds by default before they connect again."""


@dataclass(frozen=True, slots=True)
class _Section:
    html: str
    changed_in: int
    event: bytes


def history_of(state: DashboardState) -> HistoryView:
    """What the state alone tells of the past, for a dashboard that keeps no history."""
    points = tuple(
        HistoryPoint(
            at=point.at,
            tokens=point.tokens,
            rounds=0,
            held_out_loss=point.held_out_loss,
            train_loss=point.train_loss,
            num_trainers=point.num_trainers,
            num_peers=point.num_trainers,
            tokens_per_second=point.tokens_per_second,
            upload_bits_per_second=0.0,
            download_bits_per_second=0.0,
        )
        for point in state.points
    )
    return HistoryView(now=state.now, started_at=state.started_at, points=points)


class Live:
    """The newest state, rendered. `publish` and `close` are called on the event loop and never block.

    Args:
        boot_id: differs between two starts of the dashboard, so that a version of an earlier one is never believed.
    """

    def __init__(self, state: DashboardState, boot_id: str, history: HistoryView | None = None) -> None:
        self.state = state
        self.history = history or history_of(state)
        self.version = 0
        self.is_closed = False
        self._boot_id = boot_id
        self._sections: dict[str, _Section] = {}
        self._changed = asyncio.Event()
        self.publish(state, history)

    @property
    def snapshot_id(self) -> str:
        """Names the present version; what a viewer sends back when it connects."""
        return f"{self._boot_id}-{self.version}"

    @property
    def sections(self) -> dict[str, str]:
        return {key: section.html for key, section in self._sections.items()}

    def publish(self, state: DashboardState, history: HistoryView | None = None) -> None:
        """Render `state` and `history` and wake every viewer if that changed anything."""
        self.state = state
        self.history = history or history_of(state)
        rendered = render_sections(state, self.history)
        changed = {key: html for key, html in rendered.items() if self._html(key) != html}
        if not changed:
            return
        self.version += 1
        for key, html in changed.items():
            self._sections[key] = _Section(html, self.version, self._event(key, html))
        self._wake()

    def version_of(self, snapshot_id: str) -> int:
        """The version a viewer has; 0 when it is of an earlier start or no snapshot id at all."""
        boot_id, _, version = snapshot_id.rpartition("-")
        if boot_id != self._boot_id or not (version.isascii() and version.isdigit()) or len(version) > 18:
            return 0
        return min(int(version), self.version)

    def since(self, version: int) -> bytes:
        """Events of all sections that changed after `version`; empty when there are none."""
        newer = [section for section in self._sections.values() if section.changed_in > version]
        # The last event's id is what a viewer comes back with, so it has to be the newest.
        return b"".join(section.event for section in sorted(newer, key=lambda section: section.changed_in))

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
        """End every viewer's stream; without it a server waits for them for ever."""
        self.is_closed = True
        self._wake()

    def _html(self, key: str) -> str | None:
        section = self._sections.get(key)
        return section.html if section is not None else None

    def _event(self, key: str, html: str) -> bytes:
        data = json.dumps({"section": key, "html": html}, separators=(",", ":"))
        return f"id: {self.snapshot_id}\nevent: section\ndata: {data}\n\n".encode()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
