"""Entry point of the `peer` script, which loads our packages even if this computer has a different `peer`."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in: no file of that name can replace this module

# Set before all other imports, as in `peer/__main__.py`: from here on, Ctrl+C ends the process without a traceback.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from murmuration.own_packages import import_path


def main() -> None:
    """Run the command line and end the process.

    If a different package has overwritten ours, print one sentence and exit with code 1.
    """
    import_path().leave_working_folder()
    from peer.__main__ import main as run

    run()
