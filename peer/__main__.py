"""The command line: entry point of `python -m peer`; `murmuration/command.py` runs it too."""

import _signal  # type: ignore[import-not-found]  # built in, so no file of that name can replace it
import os
import sys

# Until `main` can print a sentence, Ctrl+C ends this process without a traceback.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from peer.import_path import leave_working_folder

# Before all other imports: from the next line on, nothing is imported from the working folder.
leave_working_folder()

import atexit  # noqa: E402
import contextlib  # noqa: E402
import threading  # noqa: E402
from typing import NoReturn  # noqa: E402

from peer.console.notices import say  # noqa: E402
from peer.process_setup import EARLY_LOADING, put_right  # noqa: E402

_INTERRUPTED = 130
"""Equal to `dht.ground.errors.EXIT_INTERRUPTED`, which may not be loaded yet when it is needed."""


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
        # Help and usage errors are printed outside the commands, which report such errors themselves.
        code = _without_output(error)
    except KeyboardInterrupt:
        say("Interrupted.")
        code = _INTERRUPTED
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    # The interpreter would wait for threads that still load libraries, or print their traceback below the sentence.
    if code != _INTERRUPTED and not any(thread.name == EARLY_LOADING for thread in threads):
        if not all(thread.daemon for thread in threads):
            sys.exit(code)
        atexit._run_exitfuncs()
    # Exit at once, because the interpreter would first free every object of torch, which takes a second.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _without_output(error: OSError) -> int:
    """Print a sentence, unless the reader of the output (`| head`) has gone; return the exit code."""
    with contextlib.suppress(OSError):
        if not isinstance(error, BrokenPipeError):
            say(f"The output cannot be written ({error.strerror or error}); expected free disk space.")
    # Otherwise the interpreter would try to write again when it ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    return 1


if __name__ == "__main__":
    main()
