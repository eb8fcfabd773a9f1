"""Libraries that only some commands need, and the error if one is missing."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

from dht.ground.errors import UsageFault
from peer.installation import extra_command


@contextlib.contextmanager
def needing(purpose: str, library: str, extra: str) -> Iterator[None]:
    """Context for the import of a library that may be missing.

    Args:
        purpose: the function that needs the library, as the beginning of a sentence: "`peer evaluate --tasks`".
        extra: the group of optional dependencies that contains the library.

    Raises:
        UsageFault: the library cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        # The error of an installed library with a missing dependency names that dependency.
        there = "" if error.name in (None, library.replace("-", "_")) else f" ({error})"
        raise UsageFault(
            f"{purpose} needs {library}, which cannot be imported here{there}; expected the extra {extra}; run "
            f"{extra_command(extra)}"
        ) from error


def check_page_extra(purpose: str) -> None:
    """Check the libraries of the extra `page`. Raises UsageFault: one is missing. `purpose` as for `needing`."""
    for name in ("PIL", "prometheus_client"):
        with needing(purpose, name, "page"):
            importlib.import_module(name)
