"""Libraries that only the worker loads that runs their tests: some take longer to import than their tests to run."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


class LateLibrary:
    """A module that is imported when one of its names is first read. Nothing can be set on it."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks everything in a test file whether it is a test or a mock
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} would be set on a stand-in of {self._name}; name it as 'module.{name}'")


def late_library(name: str, needs: str | None = None) -> Any:
    """The module `name`, imported when it is first used; without the library `needs` the test file is skipped."""
    library = needs or name.partition(".")[0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed", allow_module_level=True)
    return LateLibrary(name)
