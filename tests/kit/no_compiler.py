"""Torch without its compiler: torch loads that with the first optimizer, which takes longer than most tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
SHAPE_KERNELS = "torch._meta_registrations"


class Postponed(ModuleType):
    """In place of a part of torch, which is loaded when something asks for what is in it."""

    def __getattr__(self, name: str) -> Any:
        # `inspect` asks every module for its file; only an import of a part asks for a path.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        # The compiler expects that the kernels are there.
        for part in (SHAPE_KERNELS, self.__name__):
            if isinstance(sys.modules.get(part), Postponed):
                del sys.modules[part]
                importlib.import_module(part)
        return getattr(importlib.import_module(self.__name__), name)


class NoCompiler(Postponed):
    """In place of torch's compiler: its answers to optimizers while nothing is compiled."""

    def disable(self, function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        """The function as it is."""
        return function

    def graph_break(self, *_: object) -> None:
        """There is no graph."""


def load_no_compiler() -> None:
    """Let torch load its compiler only when something compiles."""
    sys.modules.setdefault(COMPILER, NoCompiler(COMPILER))


def load_no_shape_kernels() -> None:
    """Let torch load without its kernels in Python for tensors that have only a shape: a third of its start.

    For `peer join` with one device: FSDP and transformers ask those kernels.
    """
    sys.modules.setdefault(SHAPE_KERNELS, Postponed(SHAPE_KERNELS))
