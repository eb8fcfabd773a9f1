"""The command line: entry point of `python -m peer`, and what `murmuration/command.py` runs."""

import _signal  # type: ignore[import-not-found]  # built in: no file of that name can stand in for it
import os
import sys

# Until `main` can say a sentence, Ctrl+C ends this process without a traceback.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from peer.import_path import leave_working_folder

# Before anything else is imported: from the next line on nothing comes from the working folder.
leave_working_folder()

import atexit  # noqa: E402
import contextlib  # noqa: E402
import threading  # noqa: E402
from typing import NoReturn  # noqa: E402

from peer.console.notices import say  # noqa: E402
from peer.process_setup import EARLY_LOADING, put_right  # noqa: E402

_INTERRUPTED = 130
"""As `dht.ground.errors.EXIT_INTERRUPTED`, which is not loaded yet when it is needed first."""


def main() -> NoReturn:
    """Run the command line; Ctrl+C and SIGTERM end it with a sentence from the first moment on."""
    put_right()
    try:
        for number in (_signal.SIGINT, _signal.SIGTERM):
            if _signal.getsignal(number) is _signal.SIG_DFL:
                _signal.signal(number, _signal.default_int_handler)
        # Loading the commands takes a third of a second, in which Ctrl+C would print a traceback.
        from peer.cli.app import run

        code = run(sys.argv[1:])
        sys.stdout.flush()
    except OSError as error:
        # Help and mistakes are printed outside of any command, which would say so itself.
        code = _without_output(error)
    except KeyboardInterrupt:
        say("Interrupted.")
        code = _INTERRUPTED
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    # Threads that still load something would be waited for, or leave a traceback under the sentence.
    if code != _INTERRUPTED and not any(thread.name == EARLY_LOADING for thread in threads):
        if not all(thread.daemon for thread in threads):
            sys.exit(code)
        atexit._run_exitfuncs()
    # At once: the interpreter would free every object of torch first, which takes a second.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _without_output(error: OSError) -> int:
    """One sentence, if somebody can read it; nothing where the reader (`| head`) has gone."""
    with contextlib.suppress(OSError):
        if not isinstance(error, BrokenPipeError):
            say(f"The output cannot be written ({error.strerror or error}); expected room for it.")
    # The interpreter would try once more when it ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    return 1


if __name__ == "__main__":
    main()
