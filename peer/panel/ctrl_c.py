"""Ctrl+C, SIGTERM or a closed terminal: the first asks a peer to leave politely, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_WHILE_LOADING = "Leaving once the current loading step has ended."
_POLITELY = "leaving: finishing the current work; ask again to leave at once"


class LeaveRequest:
    """Whether the owner wants to leave, and how soon.

    Args:
        say: shows a sentence; called from a signal handler, so it must not take a lock.
        has_panel: the view uses the whole screen, which must be restored on Ctrl+Z.
    """

    def __init__(self, say: Callable[[str], object], *, has_panel: bool) -> None:
        self._say = say
        self._has_panel = has_panel
        self._is_loading = False
        self._leaves_at_once = False
        self._action: Callable[[], object] = lambda: None
        self.is_asked = False

    def leave_by(self, action: Callable[[], object]) -> None:
        """Call `action` once the owner wants to leave: from a signal handler, or now if the owner already does."""
        self._action = action
        if self.is_asked:
            action()

    def ask(self) -> None:
        """Handle a key to leave like the first or the second Ctrl+C."""
        if self._ends_at_once():
            os.kill(os.getpid(), signal.SIGINT)
        else:
            self._ask_politely()

    def interrupted(self) -> None:
        """Record that a `KeyboardInterrupt` has ended the current work."""
        self.is_asked = True

    def loaded(self) -> None:
        """From now on, treat the first Ctrl+C as a polite request."""
        self._is_loading = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Make the first Ctrl+C end the work in the block; for the main thread, before any member waits for this peer.

        Raises:
            KeyboardInterrupt: in the block, once the owner wants to leave, or already does.
        """
        self._leaves_at_once = True
        try:
            if self.is_asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._leaves_at_once = False

    @contextmanager
    def by_signals(self, suspend: Callable[[], object], *, is_loading: bool) -> Iterator[None]:
        """Treat signals within the block as requests to leave. Use it only in the main thread.

        Args:
            suspend: restores the terminal before Ctrl+Z stops this process; for a panel.
            is_loading: the first signal ends this peer at once until `loaded` is called.

        Raises:
            KeyboardInterrupt: in the block, by a signal that ends it at once.
        """
        self._is_loading = is_loading
        previous = {}
        if threading.current_thread() is threading.main_thread():
            previous = {number: signal.signal(number, self._on_signal) for number in _asking_signals()}
            stops = getattr(signal, "SIGTSTP", None)
            if self._has_panel and stops and signal.getsignal(stops) is signal.SIG_DFL:
                previous[stops] = signal.signal(stops, lambda number, frame: suspend())
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._ends_at_once():
            self._ask_politely()
            return
        self.is_asked = True
        if self._is_loading:
            self._say(_WHILE_LOADING)
        raise KeyboardInterrupt

    def _ends_at_once(self) -> bool:
        return self.is_asked or self._is_loading or self._leaves_at_once

    def _ask_politely(self) -> None:
        self.is_asked = True
        self._say(_POLITELY)
        self._action()


def _asking_signals() -> list[signal.Signals]:
    """Return the signals that ask this peer to leave: SIGTERM, and the others unless they were ignored.

    Shells start the background jobs of a script with SIGINT ignored, because its Ctrl+C is not meant for them; nohup
    does the same with SIGHUP.
    """
    signals = [signal.SIGTERM]
    for name in ("SIGINT", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signals.append(number)
    return signals
