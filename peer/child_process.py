"""Starts, feeds and ends a child process: the parent's side and the child's side.

Slow modules are not imported, and error sentences only on failure, because a peer's two processes load in parallel.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import IO, Any, TextIO

from peer.import_path import python_environment

PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT

_ERROR_LINES, _LINE_BYTES = 20, 400
"""Lines of a child's standard error, and bytes per line, that are kept for the sentence about its end."""

Stream = int | IO[bytes]


class ChildProcess(subprocess.Popen[bytes]):
    """A child process. Its standard input closes when this process dies, which ends the child (`end_with_parent`).

    Args:
        command: see `peer.import_path.python_command`.
        purpose: completes the sentence "no process can be started ...".
        stdin: `PIPE` to feed the child, and to end the child by closing.
        errors: `PIPE` keeps the last lines for `death`; None: the standard error of this process.
        environment: the complete environment; default: this process's, which may contain credentials.
        has_own_group: a terminal's Ctrl+C does not reach the child, and `kill` also ends the child's own children.

    Raises:
        LocalFault: the process cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        purpose: str,
        *,
        stdin: Stream = PIPE,
        output: Stream | None = DEVNULL,
        errors: Stream | None = DEVNULL,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
        pass_fds: Collection[int] = (),
        has_own_group: bool = True,
    ) -> None:
        self._has_own_group = has_own_group
        self._ended_for = ""
        self._last_lines: deque[bytes] = deque(maxlen=_ERROR_LINES)
        try:
            super().__init__(
                command,
                stdin=stdin,
                stdout=output,
                stderr=errors,
                env=python_environment() if environment is None else environment,
                cwd=folder,
                pass_fds=pass_fds,
                start_new_session=has_own_group,
            )
        except OSError as error:
            from dht.ground.errors import LocalFault

            raise LocalFault(
                f"no process can be started {purpose} ({error.strerror or error}); expected room for one; end other "
                "programs"
            ) from error
        self._error_reader = threading.Thread(target=self._keep_errors, daemon=True)
        if self.stderr is not None:
            self._error_reader.start()

    def feed(self, data: bytes) -> None:
        """Write to the child's standard input.

        Raises:
            OSError: the child has ended; `death` returns the reason.
        """
        assert self.stdin is not None
        self.stdin.write(data)
        self.stdin.flush()

    def close_input(self) -> None:
        """Close the child's standard input."""
        if self.stdin is not None:
            with contextlib.suppress(OSError):  # the child ended without reading all input
                self.stdin.close()

    def answer(self, max_bytes: int, seconds: float) -> bytes:
        """Wait until the child ends, and return its standard output; all processes that it started are killed.

        Raises:
            LocalFault: the child wrote nothing or more than `max_bytes`, or took longer than `seconds`.
        """
        assert self.stdout is not None
        limit = threading.Timer(seconds, self.end_for, [f"took longer than {seconds:.0f} s"])
        limit.daemon = True
        limit.start()
        try:
            output = self.stdout.read(max_bytes + 1)
            if len(output) > max_bytes:
                self.end_for(f"answered with more than {max_bytes} bytes")
            self.wait()
        finally:
            limit.cancel()
            self._kill_all()  # the child's daemon may still run
            self.end(0.0)
        if self._ended_for or not output:
            from dht.ground.errors import LocalFault

            raise LocalFault(
                f"the process {self.death()}; expected an answer of at most {max_bytes} bytes within {seconds:.0f} s; "
                "is there enough memory?"
            )
        return output

    def end_for(self, reason: str) -> None:
        """Kill the child; `death` then returns the reason of the first such call."""
        self._ended_for = self._ended_for or reason
        self._kill_all()

    def kill(self) -> None:
        """End the child and its own group at once, without waiting."""
        if self.poll() is None:
            self._kill_all()

    def end(self, seconds: float) -> None:
        """Close the child's input, wait until it ends, kill it after `seconds`, and close the other pipes."""
        end_all([self], seconds)
        if self._error_reader.is_alive():
            self._error_reader.join()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def death(self) -> str:
        """Wait until the child ends; return how it ended, with its last output."""
        code, last = self.wait(), self.last_words()
        return self._ended_for or f"{how_it_ended(code)}{f' ({last})' if last else ''}"

    def last_words(self) -> str:
        """Return the end of the child's standard error."""
        self._kill_all()  # the child's own children may hold the pipe open
        if self._error_reader.is_alive():
            self._error_reader.join()
        from dht.ground.fields import printable

        return printable(b" ".join(self._last_lines).decode(errors="replace"))[-300:].strip()

    def _kill_all(self) -> None:
        if not self._has_own_group:
            super().kill()
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _keep_errors(self) -> None:
        assert self.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while line := self.stderr.readline(_LINE_BYTES):
                if line.strip():
                    self._last_lines.append(line.strip())


def end_all(children: Iterable[ChildProcess], seconds: float, number: int | None = None) -> None:
    """Ask children to end, by closing their input and with the signal `number`; kill the rest after `seconds`.

    Ctrl+C during the wait kills them at once.
    """
    running = list(children)
    deadline = time.monotonic() + seconds
    try:
        for child in running:
            child.close_input()
            if number is not None:
                child.send_signal(number)
        for child in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for child in running:
            child.kill()
        for child in running:
            child.wait()


def how_it_ended(code: int) -> str:
    """Return a phrase for an exit status of `Popen`."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


# The child's side


def end_with_parent(stream: Any, end: Callable[[], None]) -> None:
    """Call `end` when `stream` closes, for example because the process at its other end dies."""

    def watch() -> None:
        # The stream's buffer is not used: a reading thread that holds its lock would abort the interpreter at exit.
        with contextlib.suppress(OSError, ValueError):
            while os.read(stream.fileno(), 1):
                pass
        end()

    threading.Thread(target=watch, name="orphan", daemon=True).start()


def end_own_group() -> None:
    """End this process without cleanup, and all processes of its own group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def taken_stream(number: int) -> TextIO:
    """Return standard output (1) or standard error (2) for answers only, and discard what libraries print."""
    stream = os.fdopen(os.dup(number), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    return stream


def reason_of(error: Exception) -> str:
    """Return one line about an exception of a library, or the sentence of our own fault."""
    from dht.ground.errors import LocalFault
    from dht.ground.fields import printable

    text = str(error) if isinstance(error, LocalFault | OSError) else f"{type(error).__name__}: {error}"
    return printable(" ".join(text.split()))[:300]
