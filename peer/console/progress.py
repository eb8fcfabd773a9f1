"""A line about what a slow command does at the moment: on standard error, and only where a person looks at it."""

from __future__ import annotations

import sys


def tell_progress(sentence: str) -> None:
    """Print it at once; in a pipe nothing is printed."""
    if sys.stderr.isatty():
        print(f"... {sentence}", file=sys.stderr, flush=True)
