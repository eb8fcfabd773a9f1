"""Starts the process for a peer's network side. Imports nothing slow, so that both processes load concurrently."""

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
    # The device's cores belong to the trainer, and each waiting thread of numpy's linear algebra takes memory. A numpy
    # built with OpenMP uses the second variable.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # numpy requests huge pages for large arrays. In fragmented memory the kernel first moves other pages, which makes
    # the first access several times slower; and the rest of each array's last page is wasted.
    "NUMPY_MADVISE_HUGEPAGE": "0",
    # Fragment-sized vectors are allocated and freed often: without these settings glibc keeps several copies of the
    # model in its free lists.
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(2 << 20),
    # Smaller blocks, such as frames of 256 KiB and chunks of 1 MiB, are kept for reuse: returning them to the kernel
    # took a third of a round's processor time.
    "MALLOC_TRIM_THRESHOLD_": str(16 << 20),
}

OWNERS_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""Signals that reach every process of a group; the trainer's process handles them. Blocked in the child until the child
ignores them: Python would answer one that comes while it loads with a traceback."""


@dataclass
class NetworkChild:
    """A process that waits for its `PeerConfig` at the other end of `connection`; see `peer.network.process.main`."""

    process: ChildProcess
    connection: socket.socket
    is_taken: bool = False

    def take(self) -> NetworkChild:
        """Pass ownership to the caller, which must end the process."""
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
    """Send a line of JSON to the process at the other end; ignore a closed connection, which is detected elsewhere.

    Args:
        descriptors: file descriptors to send with a short line.
    """
    line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
    with contextlib.suppress(OSError):
        if descriptors:
            socket.send_fds(connection, [line], descriptors)
        else:
            connection.sendall(line)


@contextlib.contextmanager
def early_network_child() -> Iterator[NetworkChild]:
    """Start the process before the caller loads its own libraries; end it if no caller has taken it meanwhile."""
    child = start_network_child()
    try:
        yield child
    finally:
        if not child.is_taken:
            child.connection.close()
            child.process.end(0.0)
