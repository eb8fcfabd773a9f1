"""A member in a process of its own, which takes orders and answers in lines of JSON."""

from __future__ import annotations

import json
import subprocess
from typing import IO, Any


class MemberProcess:
    """One `round_member.py`, `session_member.py`, or member of another system."""

    def __init__(self, index: int, process: subprocess.Popen[str]) -> None:
        self.index = index
        self._process = process
        self.hello: dict[str, Any] = self.read()

    def tell(self, **order: Any) -> None:
        """Give an order; its answer is for `read`."""
        _pipe(self._process.stdin).write(json.dumps(order) + "\n")
        _pipe(self._process.stdin).flush()

    def read(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            SystemExit: the process ended; what it said is on standard error.
        """
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise SystemExit(f"member {self.index} ended with {self._process.wait()}; see its words above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **order: Any) -> dict[str, Any]:
        """Order and answer."""
        self.tell(**order)
        return self.read()

    @property
    def process_id(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    def stop(self) -> None:
        """Close its input, which ends it."""
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "members are started with pipes"
    return pipe
