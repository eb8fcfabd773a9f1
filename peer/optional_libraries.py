"""Libraries that only some commands need: the sentence when one is not there."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

from dht.ground.errors import UsageFault
from peer.installation import extra_command


@contextlib.contextmanager
def needing(purpose: str, library: str, extra: str) -> Iterator[None]:
    """Around the import of a library that may not be there.

    Args:
        purpose: what needs it, as the beginning of a sentence: "`peer evaluate --tasks`".
        extra: the group of optional dependencies that has it.

    Raises:
        UsageFault: it cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        # A library that is there and lacks a part of its own says which.
        there = "" if error.name in (None, library.replace("-", "_")) else f" ({error})"
        raise UsageFault(
            f"{purpose} needs {library}, which cannot be imported here{there}; expected the extra {extra}; run "
            f"{extra_command(extra)}"
        ) from error


def check_page_extra(purpose: str) -> None:
    """Raises UsageFault: the libraries of the extra `page` are not all there. `purpose` as for `needing`."""
    for name in ("PIL", "prometheus_client"):
        with needing(purpose, name, "page"):
            importlib.import_module(name)
