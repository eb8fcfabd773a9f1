"""Ctrl+C, SIGTERM, a closed terminal: the first one asks a peer to leave politely, the second one ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_WHILE_LOADING = "Leaving; what is being loaded ends first."
_POLITELY = "leaving: finishing what is under way; once more to leave at once"


class LeaveRequest:
    """Whether the owner wants to leave, and how soon.

    Args:
        say: shows a sentence about it; called from a signal handler, so it takes no lock.
        has_panel: the view has the whole screen, which Ctrl+Z has to give back.
    """

    def __init__(self, say: Callable[[str], object], *, has_panel: bool) -> None:
        self._say = say
        self._has_panel = has_panel
        self._is_loading = False
        self._leaves_at_once = False
        self._action: Callable[[], object] = lambda: None
        self.is_asked = False

    def leave_by(self, action: Callable[[], object]) -> None:
        """Call `action` once the owner wants to leave: from a signal handler, or now if that was before."""
        self._action = action
        if self.is_asked:
            action()

    def ask(self) -> None:
        """The owner wants to leave, by a key: as the first or the second Ctrl+C."""
        if self._ends_at_once():
            os.kill(os.getpid(), signal.SIGINT)
        else:
            self._ask_politely()

    def interrupted(self) -> None:
        """A `KeyboardInterrupt` has ended what was done."""
        self.is_asked = True

    def loaded(self) -> None:
        """From now on the first Ctrl+C is a polite one."""
        self._is_loading = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """For the main thread, before anybody waits for this peer: inside, the first Ctrl+C ends what is done there.

        Raises:
            KeyboardInterrupt: inside, once the owner wants to leave, or did before.
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
        """Inside, signals ask to leave; in the main thread alone.

        Args:
            suspend: gives the terminal back before Ctrl+Z stops this process; for a panel.
            is_loading: the first signal ends this peer at once until `loaded` is called.

        Raises:
            KeyboardInterrupt: inside, by a signal that ends it at once.
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
    """What asks this peer to leave. SIGTERM always does; the others unless somebody had them ignored.

    Shells start the background jobs of a script with SIGINT ignored, since its Ctrl+C is not meant for them; nohup does
    the same with SIGHUP.
    """
    signals = [signal.SIGTERM]
    for name in ("SIGINT", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signals.append(number)
    return signals
