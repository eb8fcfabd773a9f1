"""A line about what a slow command does at the moment: on standard error, and only where a person looks at it."""

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
    """Print it at once; in a pipe nothing is printed."""
    if sys.stderr.isatty():
        print(fitting(f"... {sentence}", sys.stderr), file=sys.stderr, flush=True)


@contextlib.contextmanager
def loading(sentence: str = "") -> Iterator[None]:
    """Around imports of large libraries: tell it, and let Ctrl+C and SIGTERM end this process at once meanwhile.

    Raised as an exception in the middle of a library, an interrupt may be swallowed, or ends the process with a dump.
    For commands that have nothing yet to clean up.
    """
    if sentence:
        tell_progress(sentence)

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, b"peer: Interrupted.\n")
        os._exit(EXIT_INTERRUPTED)

    before = {}
    if threading.current_thread() is threading.main_thread():
        # Those that somebody has ignored stay so.
        taken = [number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))]
        before = {number: signal.signal(number, end) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
