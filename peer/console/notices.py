"""Errors and notices on standard error."""

import sys

from peer.console.word_wrap import fitting


def say(sentence: str) -> None:
    """Print an error: "peer:" before a line marks it as such."""
    notice(f"peer: {sentence}")


def notice(sentence: str) -> None:
    """Print a notice that is not an error."""
    print(fitting(sentence, sys.stderr), file=sys.stderr, flush=True)
