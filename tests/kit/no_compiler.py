"""Torch without its compiler: torch loads that with the first optimizer, which takes longer than most tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
SHAPE_KERNELS = "torch._meta_registrations"


class NoCompiler(ModuleType):
    """In place of torch's compiler: its answers to optimizers while nothing is compiled. Others get the real one."""

    def disable(self, function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        """The function as it is."""
        return function

    def graph_break(self, *_: object) -> None:
        """There is no graph."""

    def __getattr__(self, name: str) -> Any:
        # `inspect` asks every module for its file; only an import of a part asks for a path.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]
        return getattr(importlib.import_module(COMPILER), name)


def load_no_compiler() -> None:
    """Let torch load its compiler only when something compiles."""
    sys.modules.setdefault(COMPILER, NoCompiler(COMPILER))


def load_no_shape_kernels() -> None:
    """Let torch load without its kernels in Python for tensors that have only a shape: a third of its start.

    For peers of one device: FSDP asks those kernels how to cut a tensor.
    """
    sys.modules.setdefault(SHAPE_KERNELS, ModuleType(SHAPE_KERNELS))
