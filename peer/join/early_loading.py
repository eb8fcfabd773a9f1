"""What is needed later is loaded beside the first dials, in a thread that ends soon when nothing comes of them."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

END_SECONDS = 30.0
"""For the module that is just being run: a tenth of a second of processor time, on a machine where many others wait."""


class _Ended(BaseException):
    """The thread that loads is to end; modules that do without one that is missing do not catch this."""


class _UntilEnded:
    """Finds no module. In the thread that loads, once that is to end, no further one is looked for either."""

    def __init__(self) -> None:
        self.is_over = False
        self.thread: threading.Thread | None = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """See `importlib.abc.MetaPathFinder`."""
        if self.is_over and threading.current_thread() is self.thread:
            raise _Ended


@contextlib.contextmanager
def loading(load: Callable[[], object]) -> Iterator[None]:
    """Run `load` in a thread meanwhile. At the end it imports nothing more, and is waited for.

    A thread that still imports when Python ends leaves a traceback under the sentence of whatever went wrong. All that
    torch's compiler consists of takes seconds of processor time: on a busy machine, minutes after that sentence. After
    Ctrl+C nothing is waited for, because the process ends without that traceback.
    """

    def run() -> None:
        with contextlib.suppress(_Ended):
            load()

    until_ended = _UntilEnded()
    thread = until_ended.thread = threading.Thread(target=run, name="early-loading", daemon=True)
    sys.meta_path.insert(0, until_ended)
    thread.start()
    is_hurried = False
    try:
        yield
    except KeyboardInterrupt:
        is_hurried = True
        raise
    finally:
        until_ended.is_over = True
        if not is_hurried:
            thread.join(END_SECONDS)
        sys.meta_path.remove(until_ended)
