"""hivemind's DHT without the rest of hivemind: the `__init__` files on the way import torch, scipy and optimizers.

A process that only wants the DHT saves a second of its start and 200 MB. Three packages do not run their `__init__`. A
name that one of them would import is imported from its source at the moment somebody asks for it.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import multiprocessing
import sys
import threading
from importlib.abc import InspectLoader
from types import ModuleType
from typing import Any, Final

_PACKAGES: Final = ("hivemind", "hivemind.utils", "hivemind.dht")
"""Parents first. `hivemind.p2p`, which the DHT needs besides, loads nothing that it has no use for."""


class _Package(ModuleType):
    """The package with its folder but without its content. A name that was asked for is an attribute from then on."""

    def __getattr__(self, name: str) -> Any:
        # Any module is asked for names such as `__wrapped__`; for these two somebody means this one.
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        origin = _imports_of(self).get(name)
        submodule = f"{self.__name__}.{name}"
        if origin is not None:
            module, name_there = origin
            value = getattr(importlib.import_module(module), name_there)
        elif importlib.util.find_spec(submodule) is not None:
            # Asked for in the middle of its import, too: it becomes an attribute only at the end.
            value = importlib.import_module(submodule)
        else:
            return self._with_everything(name)
        setattr(self, name, value)
        return value

    def _with_everything(self, name: str) -> Any:
        """The name after running the whole `__init__`, which may get names in other ways than by importing them."""
        spec = self.__spec__
        if spec is None or spec.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)


def allow_parts_of_hivemind() -> None:
    """Let ``import hivemind.dht.node`` load just that. Call it before hivemind is imported; later it does nothing.

    A program that uses a name of the package itself (``hivemind.Optimizer``) loads what that needs at that moment.
    """
    if "hivemind" in sys.modules:
        return
    _do_without_semaphores()
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.submodule_search_locations is None:
            return
        package = importlib.util.module_from_spec(spec)
        package.__class__ = _Package
        sys.modules[name] = package
        # What importing it would have done.
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, package)


def _do_without_semaphores() -> None:
    """hivemind makes locks between processes as it loads. Where none can be made, locks of this process do.

    They lie in /dev/shm, which a container may have read-only. Nothing of hivemind's that runs here uses them.
    """
    try:
        multiprocessing.Lock()
    except OSError:
        multiprocessing.Lock = threading.Lock  # type: ignore[assignment]


@functools.cache
def _imports_of(package: ModuleType) -> dict[str, tuple[str, str]]:
    """What ``from M import a as b`` at the top of the package's `__init__` binds: b -> (M, a)."""
    loader = package.__loader__
    source = loader.get_source(package.__name__) if isinstance(loader, InspectLoader) else None
    found: dict[str, tuple[str, str]] = {}
    for statement in ast.parse(source or "").body:
        if isinstance(statement, ast.ImportFrom):
            relative = "." * statement.level + (statement.module or "")
            module = importlib.util.resolve_name(relative, package.__name__)
            # What it imports from itself is a submodule.
            if module != package.__name__:
                found |= {alias.asname or alias.name: (module, alias.name) for alias in statement.names}
    return found
