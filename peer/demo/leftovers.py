"""What a demo leaves behind is taken away, also when its own process was killed: another process waits for that.

    python -m peer.demo.leftovers FOLDER

reads a line from standard input whenever the demo has started something. When the input ends, the demo has.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from peer.child_process import ChildProcess
from peer.import_path import python_command

GONE_SECONDS = 10.0
"""For killed processes to be gone: a moment, and never where nobody collects them, as in some containers."""
LOOK_SECONDS = 0.05


class DemoGuard:
    """A process that ends the processes of a demo and removes its folder if the demo can no longer do so."""

    def __init__(self, folder: Path) -> None:
        self._process = ChildProcess(python_command("peer.demo.leftovers", str(folder)), "to clean up after the demo")

    def tell(self, run_id: str, processes: Sequence[int]) -> None:
        """What runs now, each in a session of its own; what was told before counts no more."""
        with contextlib.suppress(OSError):  # somebody has killed the guard: the demo goes on without
            self._process.feed(json.dumps([run_id, *processes]).encode() + b"\n")

    def close(self) -> None:
        """The demo ends; what it has not taken away goes now."""
        self._process.close_input()
        self._process.wait()


def forget(run_id: str, folder: Path) -> None:
    """What the demo kept of its run outside of `folder` goes; a peer of somebody else that is there stays."""
    from dht.ground.errors import UsageFault
    from peer.config.peer_config import load_config
    from peer.run_folders import forget_places

    with contextlib.suppress(OSError, UsageFault):
        forget_places(folder)
        usual = load_config({"run_id": run_id})
        shutil.rmtree(usual.observer_path, ignore_errors=True)
        usual.data_dir.rmdir()


def take_away(lines: Iterable[str], folder: Path) -> None:
    """Wait for the last of a demo's `lines`, then end what runs still and remove what is still there."""
    told: list[str | int] = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last one may be cut off
            told = json.loads(line)
    if not told or not folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        return
    run_id, *processes = told
    groups = [int(one) for one in processes]
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    end = time.monotonic() + GONE_SECONDS
    while any(map(_is_there, groups)) and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
    forget(str(run_id), folder)
    shutil.rmtree(folder, ignore_errors=True)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:  # gone, or no longer ours
        return False
    return True


if __name__ == "__main__":
    take_away(sys.stdin, Path(sys.argv[1]))
