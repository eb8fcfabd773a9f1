"""Entry point of the `peer` script: it takes our own packages, whatever else is called `peer` on this computer."""

from __future__ import annotations

from typing import NoReturn

from murmuration.own_packages import import_path


def main() -> NoReturn:
    """Run the command line; one sentence and exit code 1 if another package has written over one of ours."""
    import_path().leave_working_folder()
    from peer.__main__ import main as run

    run()
