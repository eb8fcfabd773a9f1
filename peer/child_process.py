"""Starts, feeds and ends a process beside this one: the parent's end and the child's.

Loads nothing slow, and sentences only when something fails: a peer's two processes load side by side.
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
"""Kept of a child's standard error, for the sentence on its death."""

Stream = int | IO[bytes]


class ChildProcess(subprocess.Popen[bytes]):
    """A process of ours. Its standard input closes when this process dies, which ends it (`end_with_parent`).

    Args:
        command: see `peer.import_path.python_command`.
        purpose: completes the sentence "no process can be started ...".
        stdin: `PIPE` to feed it and to end it by closing.
        errors: `PIPE` keeps the last lines for `death`; None: as this process's.
        environment: all of it; default: this process's, which may hold credentials.
        has_own_group: a terminal's Ctrl+C does not reach it, and `kill` also ends what it has started.

    Raises:
        LocalFault: it cannot be started.
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
                f"no process can be started {purpose} ({error.strerror or error}); expected one more; end other "
                "programs"
            ) from error
        self._error_reader = threading.Thread(target=self._keep_errors, daemon=True)
        if self.stderr is not None:
            self._error_reader.start()

    def feed(self, data: bytes) -> None:
        """Write to its standard input.

        Raises:
            OSError: it has ended; `death` says how.
        """
        assert self.stdin is not None
        self.stdin.write(data)
        self.stdin.flush()

    def close_input(self) -> None:
        """Let it read the end of its standard input."""
        if self.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended with input unread
                self.stdin.close()

    def answer(self, max_bytes: int, seconds: float) -> bytes:
        """Wait for its end; returns its standard output. The process and all that it started are gone afterwards.

        Raises:
            LocalFault: it wrote nothing or more than `max_bytes`, or took longer than `seconds`.
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
            self._kill_all()  # a daemon of it may be left
            self.end(0.0)
        if self._ended_for or not output:
            from dht.ground.errors import LocalFault

            raise LocalFault(
                f"the process {self.death()}; expected an answer of at most {max_bytes} bytes within {seconds:.0f} s; "
                "is there enough memory?"
            )
        return output

    def end_for(self, reason: str) -> None:
        """Kill it for the first of these reasons, which `death` gives then."""
        self._ended_for = self._ended_for or reason
        self._kill_all()

    def kill(self) -> None:
        """End it at once, and its group where it has one; does not wait."""
        if self.poll() is None:
            self._kill_all()

    def end(self, seconds: float) -> None:
        """Close its input, wait so long for it to end, kill it otherwise, and close the other pipes."""
        end_all([self], seconds)
        if self._error_reader.is_alive():
            self._error_reader.join()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def death(self) -> str:
        """Wait for its end; returns how it died, with its last words."""
        code, last = self.wait(), self.last_words()
        return self._ended_for or f"{how_it_ended(code)}{f' ({last})' if last else ''}"

    def last_words(self) -> str:
        """The end of what it wrote to standard error until it died."""
        self._kill_all()  # what it has started may hold the pipe open
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
    """Ask children to end, with a closed input and the signal `number`, and kill those that are left after `seconds`.

    Ctrl+C meanwhile kills them at once.
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
    """Words for an exit status as `Popen` has it."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


# The child's end


def end_with_parent(stream: Any, end: Callable[[], None]) -> None:
    """Call `end` when `stream` closes, as it does when the holder of its other end dies."""

    def watch() -> None:
        # Not through the stream's buffer: its lock, held by a thread that still reads, aborts the interpreter's end.
        with contextlib.suppress(OSError, ValueError):
            while os.read(stream.fileno(), 1):
                pass
        end()

    threading.Thread(target=watch, name="orphan", daemon=True).start()


def end_own_group() -> None:
    """End this process without clean-up, and what it has started where it has a group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def taken_stream(number: int) -> TextIO:
    """Take standard output (1) or standard error (2) for answers alone: what libraries print leads nowhere."""
    stream = os.fdopen(os.dup(number), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    return stream


def reason_of(error: Exception) -> str:
    """One line on what a library raised, or our own sentence."""
    from dht.ground.errors import LocalFault
    from dht.ground.fields import printable

    text = str(error) if isinstance(error, LocalFault | OSError) else f"{type(error).__name__}: {error}"
    return printable(" ".join(text.split()))[:300]
