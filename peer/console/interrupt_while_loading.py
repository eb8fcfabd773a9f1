"""Ctrl+C while something is loaded that lets no Python code run: a process beside this one answers on the terminal.

A large library keeps the interpreter for seconds on a busy machine, and a handler of Python waits for it. The number of
the signal goes into a pipe at once, and a shell at its other end prints a line.
"""

import os
import signal
from typing import TextIO

from dht.ground.errors import LocalFault
from peer.child_process import ChildProcess

_SCRIPT = 'while c=$(head -c 1; echo .) && [ "$c" != . ]; do [ "$c" = "$1." ] && printf %b "$2" && set -- ""; done'
"""It reads on after that: to write into a pipe that nobody reads would be a fault of its own."""


class AnswerBeside:
    """Until `close`, the first Ctrl+C gets `line`, with escapes as `printf` has them. For the main thread.

    It is a convenience: where there is no shell, or no terminal, nobody answers so early.
    """

    def __init__(self, terminal: TextIO, line: str) -> None:
        self._process: ChildProcess | None = None
        if not terminal.isatty():
            return
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        try:
            # In a group of its own: Ctrl+C reaches all that belongs to the terminal's.
            self._process = ChildProcess(
                ["/bin/sh", "-c", _SCRIPT, "sh", chr(signal.SIGINT), line],
                "to answer Ctrl+C",
                stdin=reader,
                output=terminal.fileno(),
            )
        except LocalFault:
            os.close(self._writer)
        else:
            self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        finally:
            os.close(reader)

    def close(self) -> None:
        """From now on Python's own handlers are quick enough; may be called twice."""
        process, self._process = self._process, None
        if process is not None:
            signal.set_wakeup_fd(self._before)
            os.close(self._writer)
            process.end(0.0)
