"""The live panel on a terminal: a fitting picture, its keys, and a goodbye that stays."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import TextIO

from rich.text import Text

from dht.ground.fields import printable
from peer.events.peer_events import Event
from peer.panel.event_view import EventView
from peer.panel.key_bindings import Controls, hints
from peer.panel.scene import Scene, with_event, with_note, with_update
from peer.panel.screen_painter import Painter
from peer.panel.screens import screen
from peer.panel.sentences import ACCENT, CARE, COMMAND, DIM, PAGE, capitalised, goodbye
from peer.panel.terminal_keys import Keys
from peer.panel.text_lines import SEPARATOR, flowed, part
from peer.panel.updates import Action, Doing, LoadingStep, ViewUpdate

REFRESH_SECONDS = 1.0
"""Pause between two pictures, which take a few milliseconds each. The effect of a key is shown at once."""
NUM_KEPT_NOTES = 20
"""Number of sentences for the owner that are printed again when the panel closes."""


class PanelView(EventView):
    """Shows a scene until `close`. No state of the terminal makes a method raise.

    Args:
        scene: the scene before any event.
        act: executes the user's requests; called from the thread that calls `tick`.
        keyboard: standard input; None: no keys.
        size: returns columns and lines of the terminal.
        controls: the available keys.
    """

    is_full_screen = True

    def __init__(
        self,
        stdout: TextIO,
        scene: Scene,
        act: Callable[[Action], object] = lambda action: None,
        keyboard: TextIO | None = None,
        environ: Mapping[str, str] | None = None,
        size: Callable[[], tuple[int, int]] | None = None,
        controls: Controls | None = None,
    ) -> None:
        self._painter = Painter(stdout, environ or {})
        self._scene = scene
        self._act = act
        self._keys = Keys(keyboard)
        self._size_of = size or (lambda: _size_of(stdout))
        self._controls = controls or Controls()
        self._kept: list[str] = []
        self._now = scene.began_at
        self._drawn_at: float | None = None
        self._drawn_size = (0, 0)
        self._broken = False
        self._is_to_stop = False

    def show(self, event: Event) -> None:
        self._scene = with_event(self._scene, event)
        self._now = max(self._now, event.at)

    def tell(self, update: ViewUpdate) -> None:
        self._scene = with_update(self._scene, update, self._now)
        if isinstance(update, LoadingStep) or (isinstance(update, Doing) and update.what == "leaving"):
            self._drawn_at = None

    def note(self, sentence: str) -> None:
        self._scene = with_note(self._scene, sentence, self._now)
        self._kept = [*(one for one in self._kept if one != sentence), sentence][-NUM_KEPT_NOTES:]

    def tick(self, now: float) -> None:
        self._now = max(self._now, now)
        if self._broken:
            return
        try:
            self._look()
        except Exception:
            # A bug here only ends the view's thread and restores the terminal; training continues.
            self._leave_screen()
            raise

    def _look(self) -> None:
        if self._is_to_stop:
            self._suspend()
        if not self._keys.is_in_front:
            return
        self._keys.open()
        pressed = self._keys.pressed()
        for key in pressed:
            self._controls, action = self._controls.press(key, self._scene.limits)
            if action is not None:
                self._act(action)
        is_due = self._drawn_at is None or self._now - self._drawn_at >= REFRESH_SECONDS
        if is_due or pressed or self._size_of() != self._drawn_size:
            self._draw()

    def suspend_soon(self) -> None:
        """On Ctrl+Z: restore the terminal and stop this process at the next `tick`. For a signal handler."""
        self._is_to_stop = True

    def restore(self) -> None:
        """Restore the terminal's keys, even if the output is stuck."""
        self._keys.close()

    def close(self) -> None:
        self._keys.close()
        if not self._broken:
            kept = map(capitalised, self._kept)
            lines = [*map(printable, kept), *farewell(self._scene, self._now, self._size_of()[0])]
            self._try(lambda: self._painter.say(lines))

    def _try(self, paint: Callable[[], None]) -> None:
        """Paint, but do not stop training if the terminal is closed; the event log stays complete."""
        try:
            paint()
        except (OSError, ValueError):
            self._broken = True

    def _leave_screen(self) -> None:
        self._keys.close()
        self._try(self._painter.close)

    def _suspend(self) -> None:
        self._is_to_stop = False
        self._leave_screen()
        # Sent to this thread: another thread could take a process signal after this thread has drawn again.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        # Continues here after `fg`; everything is drawn again.
        self._drawn_at = None

    def _draw(self) -> None:
        width, height = self._drawn_size = self._size_of()
        self._drawn_at = self._now
        picture = screen(self._scene, self._controls, self._now, width, height - 1)
        self._try(lambda: self._painter.show(picture, self._footer(), width, height))

    def _footer(self) -> Text:
        room = self._drawn_size[0] - 1
        if self._scene.leaving:
            return part(capitalised(self._scene.leaving), CARE)
        if (question := self._controls.question) is not None:
            return part(question.text(room), CARE if question.problem else ACCENT)
        keys = self._keys.are_there
        return part(hints(self._controls, has_keys=keys, is_resting=self._scene.is_resting, room=room), DIM)


def farewell(scene: Scene, now: float, width: int) -> list[str]:
    """Return the goodbye in fitting lines; lines with text to copy stay whole."""
    lines: list[str] = []
    for one in goodbye(scene, now):
        parts = [part(one)] if one.startswith((PAGE, COMMAND)) else flowed([*map(part, one.split(SEPARATOR))], width)
        lines += [line.plain for line in parts]
    return lines


def _size_of(stream: TextIO) -> tuple[int, int]:
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return (size.columns, size.lines) if size.columns > 0 and size.lines > 0 else (80, 24)
