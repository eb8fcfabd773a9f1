"""The command line: entry point of `python -m peer`, and what `murmuration/command.py` runs."""

import sys

from peer.import_path import leave_working_folder

# Before anything else is imported: from the next line on nothing comes from the working folder.
leave_working_folder()

from typing import NoReturn  # noqa: E402

from peer.surroundings import put_right  # noqa: E402


def main() -> NoReturn:
    """Run the command line; Ctrl+C ends it with a sentence from the first moment on."""
    put_right()
    try:
        # Loading the commands takes a third of a second, in which Ctrl+C would print a traceback.
        from peer.cli.app import run

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        print("peer: interrupted.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
