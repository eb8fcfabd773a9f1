"""The panel of `peer join` as text and as a picture."""

from __future__ import annotations

import io

from peer.panel.panel import WIDTH, draw
from peer.panel.state import PanelState
from peer.plain_console import PlainConsole


def render_text(state: PanelState, now: float) -> str:
    """The panel as plain text without colours."""
    console = PlainConsole(file=io.StringIO(), width=WIDTH, record=True, color_system=None, legacy_windows=False)
    console.print(draw(state, now))
    return console.export_text()


def render_svg(state: PanelState, now: float) -> str:
    """The panel as an SVG picture; equal states give equal bytes."""
    console = PlainConsole(file=io.StringIO(), width=WIDTH, record=True, force_terminal=True, legacy_windows=False)
    console.print(draw(state, now))
    return console.export_svg(title="peer join", unique_id="panel")
