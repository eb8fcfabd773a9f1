"""Entry point of the `peer` script: it takes our own packages, whatever else is called `peer` on this computer."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in: no file of that name can stand in for it

# Before anything else is imported, as `peer/__main__.py` has it: from here on Ctrl+C ends the process without a
# traceback.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from murmuration.own_packages import import_path


def main() -> None:
    """Run the command line and end the process; one sentence and exit code 1 if another package wrote over ours."""
    import_path().leave_working_folder()
    from peer.__main__ import main as run

    run()
