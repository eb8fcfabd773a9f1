"""The checklist in the first moment of `peer join`, before anything is loaded: whatever comes next takes its place.

It stands below the cursor, so that what is printed next begins where it began. Loads nothing.
"""

import contextlib
import os
import sys

from peer.console.word_wrap import fitting

LABELS = {"key": "Your key", "program": "Program", "run": "The run", "model": "Model", "state": "State"}
"""Steps of the checklist, in their order."""
OF_A_SEED = ("key", "run", "state")
LABEL_WIDTH = 10

_shown: list[str] = []


def show_first_lines(doing: str, names: tuple[str, ...]) -> None:
    """Print it, if a person looks at a terminal that can take it away again."""
    is_plain = os.environ.get("TERM", "dumb") == "dumb" or not (sys.stdout.isatty() and sys.stderr.isatty())
    if is_plain or not (sys.stdout.encoding or "").lower().startswith("utf"):
        return
    steps = [f" {'⠋' if name == 'key' else '·'} {LABELS[name]}" for name in names]
    steps[0] = f"{steps[0]:<{LABEL_WIDTH + 3}}reading it"
    _shown[:] = [f"≋ {doing} …", "", *steps]
    print("\n".join(_shown), end=f"\x1b[{len(_shown) - 1}A\r", flush=True)


def clear_first_lines() -> None:
    """Before anything else is printed: take it away, if it is there."""
    if _shown:
        _shown.clear()
        with contextlib.suppress(OSError):
            # Not by `print`, which shows the marks that a terminal obeys to people (`peer/console/plain_output.py`).
            os.write(sys.__stdout__.fileno() if sys.__stdout__ else 1, b"\r\x1b[J")


def say(sentence: str) -> None:
    """Print what is wrong on standard error, in place of the checklist if that is there."""
    notice(f"peer: {sentence}")


def notice(sentence: str) -> None:
    """The same with what is good to know and no fault: "peer:" before a line says that something is wrong."""
    clear_first_lines()
    print(fitting(sentence, sys.stderr), file=sys.stderr, flush=True)
