"""Network namespaces for tests: a line between two machines that can be cut without a word to either.

Needs root and `ip`; nothing outside of the namespaces is touched.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

IPS = ("10.77.0.1", "10.77.0.2")


@dataclass(frozen=True, slots=True)
class Line:
    """Two namespaces; `ips[i]` is the address in `names[i]`."""

    names: tuple[str, str]
    ips: tuple[str, str] = IPS

    def wrapper(self, side: int) -> tuple[str, ...]:
        """A command that runs the one behind it on this side."""
        return ("ip", "netns", "exec", self.names[side])

    def cut(self) -> None:
        """Nothing gets through from now on."""
        _ip("-n", self.names[0], "link", "set", "line", "down")

    def mend(self) -> None:
        """Everything gets through again."""
        _ip("-n", self.names[0], "link", "set", "line", "up")


@contextmanager
def line_between_two_machines() -> Iterator[Line]:
    """Skips the test where namespaces are not allowed."""
    tag = uuid.uuid4().hex[:6]
    line = Line((f"mm{tag}a", f"mm{tag}b"))
    try:
        for name in line.names:
            _ip("netns", "add", name)
        _ip("-n", line.names[0], "link", "add", "line", "type", "veth", "peer", "name", "line", "netns", line.names[1])
        for name, ip in zip(line.names, line.ips, strict=True):
            _ip("-n", name, "addr", "add", f"{ip}/24", "dev", "line")
            for device in ("lo", "line"):
                _ip("-n", name, "link", "set", device, "up")
    except (OSError, subprocess.CalledProcessError) as error:
        _delete(line)
        said = error.stderr.decode().strip() if isinstance(error, subprocess.CalledProcessError) else error
        pytest.skip(f"no network namespaces can be made here: {said}")
    try:
        yield line
    finally:
        _delete(line)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _delete(line: Line) -> None:
    for name in line.names:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
