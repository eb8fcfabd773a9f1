"""Libraries that only some commands need: the sentence when one is not there."""

from __future__ import annotations

from dht.errors import UsageFault
from peer.import_path import DISTRIBUTION


def missing_extra(purpose: str, library: str, extra: str, error: ImportError) -> UsageFault:
    """What to raise when `library` cannot be imported.

    Args:
        purpose: what needs it, as the beginning of a sentence: "`peer evaluate --tasks`".
        extra: the group of optional dependencies that has it.
    """
    # A library that is there and lacks a part of its own says which.
    there = "" if error.name in (None, library.replace("-", "_")) else f" ({error})"
    return UsageFault(
        f"{purpose} needs {library}, which cannot be imported here{there}; expected the extra {extra}; "
        f"pip install '{DISTRIBUTION}[{extra}]'"
    )
