"""Sentences on standard error: of what is wrong, and of what is good to know."""

import sys

from peer.console.word_wrap import fitting


def say(sentence: str) -> None:
    """Print what is wrong: "peer:" before a line marks a fault."""
    notice(f"peer: {sentence}")


def notice(sentence: str) -> None:
    """Print what is good to know and no fault."""
    print(fitting(sentence, sys.stderr), file=sys.stderr, flush=True)
