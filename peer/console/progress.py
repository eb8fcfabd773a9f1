"""A progress line of a slow command, on standard error and only in a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from dht.ground.errors import EXIT_INTERRUPTED
from peer.console.word_wrap import fitting


def tell_progress(sentence: str) -> None:
    """Print a progress line at once. In a pipe, do nothing."""
    if sys.stderr.isatty():
        print(fitting(f"... {sentence}", sys.stderr), file=sys.stderr, flush=True)


@contextlib.contextmanager
def loading(sentence: str = "") -> Iterator[None]:
    """Print a line while large libraries are imported, and let Ctrl+C and SIGTERM end this process at once.

    For commands that have nothing to clean up yet. An interrupt that is raised as an exception inside a library may be
    swallowed, or may end the process with a dump.
    """
    if sentence:
        tell_progress(sentence)

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, b"peer: Interrupted.\n")
        os._exit(EXIT_INTERRUPTED)

    before = {}
    if threading.current_thread() is threading.main_thread():
        # Ignored signals stay ignored.
        taken = [number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))]
        before = {number: signal.signal(number, end) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
