"""Entry point of the `peer` script and of `python -m peer`."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; Ctrl+C ends it with a sentence from the first moment on."""
    try:
        # Loading the commands takes a third of a second, in which Ctrl+C would print a traceback.
        from peer.cli import run

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        print("peer: interrupted.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
