"""Starts the process that a peer's network side runs in. Imports nothing slow: both processes load side by side."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from peer.child_process import DEVNULL, ChildProcess
from peer.import_path import python_command, python_environment

CHILD_ENVIRONMENT = {
    # The device's cores belong to the trainer, and each thread of numpy's linear algebra that waits for work takes
    # memory. A numpy that was built with OpenMP goes by the second name.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # numpy asks for huge pages for large arrays. Where memory is in pieces the kernel moves others' first, which makes
    # the first touch several times as long; and of the last page of each array the rest is taken for nothing.
    "NUMPY_MADVISE_HUGEPAGE": "0",
    # Fragment-sized vectors come and go: without these glibc keeps several copies of the model in its free lists.
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(2 << 20),
    # What is smaller, frames of a quarter of a MiB and chunks of one, is kept for the next one: memory that goes back
    # to the kernel in between took a third of a round's processor time.
    "MALLOC_TRIM_THRESHOLD_": str(16 << 20),
}

OWNERS_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""They reach every process of a group; the trainer's process decides what they mean. Held back in the child until it
ignores them: Python would answer one that comes while it loads with a traceback."""


@dataclass
class NetworkChild:
    """A process that waits for its `PeerConfig` at the other end of `connection`; see `peer.network.process.main`."""

    process: ChildProcess
    connection: socket.socket
    is_taken: bool = False

    def take(self) -> NetworkChild:
        """It is the caller's from now on, who ends it."""
        self.is_taken = True
        return self


def start_network_child() -> NetworkChild:
    """Start the process."""
    ours, theirs = socket.socketpair()
    held_back = signal.pthread_sigmask(signal.SIG_BLOCK, OWNERS_SIGNALS)
    try:
        process = ChildProcess(
            python_command("peer.network.process.main", str(theirs.fileno())),
            "for the network",
            stdin=DEVNULL,
            output=None,
            errors=None,
            environment={**python_environment(), **CHILD_ENVIRONMENT},
            pass_fds=(theirs.fileno(),),
            has_own_group=False,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held_back)
        theirs.close()
    return NetworkChild(process, ours)


def send_line(connection: socket.socket, kind: str, descriptors: Sequence[int] = (), **fields: Any) -> None:
    """A line of JSON to the process at the other end; where that has just gone, its end is noticed elsewhere.

    Args:
        descriptors: of files that it gets with a short line.
    """
    line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
    with contextlib.suppress(OSError):
        if descriptors:
            socket.send_fds(connection, [line], descriptors)
        else:
            connection.sendall(line)


@contextlib.contextmanager
def early_network_child() -> Iterator[NetworkChild]:
    """Start it before its owner has loaded what it needs itself; ends it when nobody has taken it meanwhile."""
    child = start_network_child()
    try:
        yield child
    finally:
        if not child.is_taken:
            child.connection.close()
            child.process.end(0.0)
