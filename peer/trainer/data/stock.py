"""Groups of data that are brought here in the background while others are trained on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from dht.errors import LocalFault

PAUSES_SECONDS = (1.0, 5.0, 20.0, 60.0)
"""After the first failures of a group, and then again and again the last one: a server restarts within a minute."""


class Stock:
    """Brings wanted groups, one after the other, in a thread of its own.

    Args:
        bring: gets a group, and returns when it is here; called from that thread.
        note: takes a sentence when a group cannot be had, and when groups come again.
    """

    def __init__(self, bring: Callable[[int], None], note: Callable[[str], None]) -> None:
        self._bring = bring
        self._note = note
        self._wanted: list[int] = []
        self._here: set[int] = set()
        self._num_failures = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def want(self, groups: Sequence[int]) -> None:
        """These in this order, in place of those that were wanted before."""
        with self._changed:
            self._wanted = [group for group in groups if group not in self._here]
            if self._thread is None and self._wanted:
                self._thread = threading.Thread(target=self._work, name="data", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._wanted:
                    self._changed.wait()
                # After a failure another group goes first: one that is broken does not hold up the rest.
                group = self._wanted[self._num_failures % len(self._wanted)]
            try:
                self._bring(group)
            except LocalFault as error:
                if self._num_failures == 0:
                    self._note(f"data cannot be had now: {error}; training goes on with what is here")
                pause = PAUSES_SECONDS[min(self._num_failures, len(PAUSES_SECONDS) - 1)]
                self._num_failures += 1
                with self._changed:
                    self._changed.wait(pause)
                continue
            with self._changed:
                self._here.add(group)
                self._wanted = [one for one in self._wanted if one != group]
            if self._num_failures:
                self._num_failures = 0
                self._note("data comes again")
