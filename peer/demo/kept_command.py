"""A command that leaves when its parent process is gone: `python -m peer.demo.kept_command join ...`."""

from __future__ import annotations

import os
import runpy
import signal
import sys

from peer.child_process import end_with_parent


def main() -> None:
    """Run the command; the end of standard input asks it to leave, like SIGTERM."""
    end_with_parent(sys.stdin.buffer, lambda: os.kill(os.getpid(), signal.SIGTERM))
    # Not imported, because the commands import the demo.
    runpy.run_module("peer", run_name="__main__")


if __name__ == "__main__":
    main()
