"""Start a child with limits, send it questions, and describe every kind of failure in one sentence."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from dht.ground.errors import Incompatible, LocalFault, UsageFault
from dht.ground.fields import printable
from dht.ground.quantities import bytes_text
from peer.child_process import PIPE, ChildProcess
from peer.import_path import python_command, python_environment
from peer.limited_child.confinement import confined_environment, resident_bytes
from peer.limited_child.frames import Frame, frame_bytes, read_frame

START_SECONDS = 300.0
"""Time limit for loading Python and the libraries of a module from a cold disk."""
MAX_SENTENCE = 600
_LOOK_SECONDS = 0.1
_FAULTS: dict[str, type[LocalFault]] = {kind.__name__: kind for kind in (LocalFault, UsageFault, Incompatible)}


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Bounds of a child process.

    Attributes:
        memory_bytes: memory in addition to that of the process after importing its module.
        seconds: time for each question, and for `prepare`.
        answer_bytes: size of one answer, its JSON and its body together.
    """

    memory_bytes: int
    seconds: float
    answer_bytes: int = 16 << 20


class LimitedChild:
    """A child process that runs one of our modules on an untrusted file. Not thread-safe.

    Args:
        module: dotted name of our module; see `peer.limited_child`.
        setup: argument of its `prepare`.
        limits: see `ChildLimits`.
        what: name of the file or object in sentences, such as "the tokenizer of run 'books'".
        advice: what a user can do about a failure.
    """

    def __init__(
        self,
        module: str,
        setup: dict[str, Any],
        limits: ChildLimits,
        what: str,
        advice: str = "tell the run's owner",
    ) -> None:
        self._setup: dict[str, Any] | None = setup
        self._limits, self._what, self._advice = limits, what, advice
        self._folder = tempfile.mkdtemp(prefix="peer-")
        command = python_command("peer.limited_child.process", module, str(limits.memory_bytes), str(limits.seconds))
        try:
            self._process = ChildProcess(
                command,
                f"to look at {what}",
                output=PIPE,
                errors=PIPE,
                environment=confined_environment(python_environment(), self._folder),
                folder=self._folder,
            )
        except LocalFault:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def start(self) -> None:
        """Wait until the module is loaded and prepared. Otherwise the first `ask` does so.

        Raises:
            LocalFault: the module cannot be loaded.
            UsageFault, Incompatible, LocalFault: its `prepare` failed, as for `ask`.
        """
        if self._setup is None:
            return
        with self._watched(START_SECONDS, None):
            ready = self._receive()
        if ready is None or "is_ready" not in ready[0]:
            raise self._died()
        self._exchange(self._setup, b"")
        self._setup = None

    def ask(self, question: dict[str, Any], body: bytes = b"") -> Frame:
        """Send a question and wait for the answer: a JSON object and bytes, both untrusted.

        Raises:
            UsageFault, Incompatible: the module raised it.
            LocalFault: the module or a library raised it, or the child ran out of time or memory, died, or sent too
                much.
        """
        self.start()
        return self._exchange(question, body)

    @property
    def has_ended(self) -> bool:
        """Return whether the child has ended; another `ask` would raise the same sentence."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the child at once."""
        self._process.end(0.0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(self, question: dict[str, Any], body: bytes) -> Frame:
        with self._watched(self._limits.seconds, self._limits.memory_bytes):
            with contextlib.suppress(OSError):  # it has died: no answer is received then
                self._process.feed(frame_bytes(question, body))
            received = self._receive()
        if received is None:
            raise self._died()
        return self._checked(received[0]), received[1]

    def _receive(self) -> Frame | None:
        assert self._process.stdout is not None
        try:
            return read_frame(self._process.stdout.read, self._limits.answer_bytes)
        except ValueError as error:
            self._process.end_for(f"answered with {error}")
            return None

    def _checked(self, fields: dict[str, Any]) -> dict[str, Any]:
        answer, fault, kind = fields.get("answer"), fields.get("fault"), fields.get("kind")
        if isinstance(answer, dict):
            return answer
        if not isinstance(fault, str) or not isinstance(kind, str):
            self._process.end_for("returned neither an answer nor a fault")
            raise self._died()
        sentence = printable(fault)[:MAX_SENTENCE]
        if kind == "MemoryError":
            raise LocalFault(self._sentence(f"took more than {bytes_text(self._limits.memory_bytes)} of memory"))
        if kind in _FAULTS:
            raise _FAULTS[kind](sentence)
        raise LocalFault(self._sentence(f"failed ({sentence[:300]})"))

    @contextlib.contextmanager
    def _watched(self, seconds: float, memory_bytes: int | None) -> Iterator[None]:
        """Kill the child if it takes longer than `seconds`, or uses too much memory where the kernel does not
        limit it.
        """
        is_over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(is_over, seconds, memory_bytes), daemon=True)
        watch.start()
        try:
            yield
        finally:
            is_over.set()
            watch.join()

    def _watch(self, is_over: threading.Event, seconds: float, memory_bytes: int | None) -> None:
        allowed = START_SECONDS if memory_bytes is None else self._limits.seconds
        too_long = f"took more than {allowed:.3g} s"
        if sys.platform == "linux" or memory_bytes is None:
            if not is_over.wait(seconds):
                self._process.end_for(too_long)
            return
        limit, deadline = resident_bytes(self._process.pid) + memory_bytes, time.monotonic() + seconds
        while not is_over.wait(_LOOK_SECONDS):
            if time.monotonic() > deadline:
                self._process.end_for(too_long)
            elif resident_bytes(self._process.pid) > limit:
                self._process.end_for(f"took more than {bytes_text(memory_bytes)} of memory")

    def _died(self) -> LocalFault:
        """Return the error for a child that has ended."""
        self._process.kill()
        return LocalFault(self._sentence(self._process.death()))

    def _sentence(self, what_happened: str) -> str:
        limits = f"{bytes_text(self._limits.memory_bytes)} and {self._limits.seconds:.3g} s"
        return (
            f"the process that reads {self._what} {what_happened}; expected an answer within {limits}; {self._advice}"
        )
