"""Which view shows a peer: a live panel on a terminal, else plain lines, or JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TextIO

from peer.events import peer_events as events
from peer.panel.plain_and_json_views import JsonView, PlainView
from peer.panel.scene.key_bindings import Controls
from peer.panel.scene.scene import Scene
from peer.panel.scene.updates import Action, ViewUpdate

Output = Literal["auto", "panel", "plain", "verbose", "json"]


class EventView(Protocol):
    """What shows one peer. No method raises, whatever becomes of the output."""

    def show(self, event: events.Event) -> None:
        """Take in one event."""

    def tell(self, update: ViewUpdate) -> None:
        """Take in something else."""

    def tick(self, now: float) -> None:
        """Let time pass (unix seconds); call it several times a second."""

    def note(self, sentence: str) -> None:
        """Tell the owner something that is not an event, e.g. a warning of the event log."""

    def suspend_soon(self) -> None:
        """The owner pressed Ctrl+Z; for a signal handler."""

    def restore(self) -> None:
        """Give back what was taken of the terminal, even if the output is stuck; may be called from any thread."""

    def close(self) -> None:
        """Leave the terminal as it was found."""


def make_view(
    output: Output,
    stdout: TextIO,
    stderr: TextIO,
    environ: Mapping[str, str],
    scene: Scene | None = None,
    act: Callable[[Action], object] = lambda action: None,
    keyboard: TextIO | None = None,
    controls: Controls | None = None,
    began_at: float = 0.0,
) -> EventView:
    """The view for `output`; "auto" is the panel on a capable terminal and plain lines everywhere else.

    Args:
        scene, act, keyboard, controls, began_at: of `PanelView`.
    """
    if output == "auto":
        output = "panel" if stdout.isatty() and environ.get("TERM") not in ("dumb", "") else "plain"
    scene = scene or Scene()
    if output == "json":
        return JsonView(stdout, stderr)
    if output == "panel":
        from peer.panel.live_panel import PanelView  # with it the library that draws, which plain lines have no need of

        return PanelView(stdout, scene, act, keyboard, environ, controls=controls, began_at=began_at)
    return PlainView(stdout, scene, is_verbose=output == "verbose")
