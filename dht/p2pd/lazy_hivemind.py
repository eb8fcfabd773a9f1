"""Load hivemind's DHT without the rest of hivemind, whose `__init__` files import torch, scipy and optimizers.

A process that only needs the DHT starts a second faster and saves 200 MB. Three packages do not run their `__init__`; a
name that the `__init__` would import is imported from its source on first use.
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
"""Parents first. `hivemind.p2p`, which the DHT also needs, loads nothing unnecessary."""


class _Package(ModuleType):
    """A package with its folder but without its content. A name becomes an attribute on first use."""

    def __getattr__(self, name: str) -> Any:
        # Python asks each module for names such as `__wrapped__`; only these two are meant for the package.
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        origin = _imports_of(self).get(name)
        submodule = f"{self.__name__}.{name}"
        if origin is not None:
            module, name_there = origin
            value = getattr(importlib.import_module(module), name_there)
        elif importlib.util.find_spec(submodule) is not None:
            # A submodule may be requested during its own import, before it becomes an attribute.
            value = importlib.import_module(submodule)
        else:
            return self._with_everything(name)
        setattr(self, name, value)
        return value

    def _with_everything(self, name: str) -> Any:
        """Return the name after running the whole `__init__`, which may define names without importing them."""
        spec = self.__spec__
        if spec is None or spec.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)


def allow_parts_of_hivemind() -> None:
    """Let ``import hivemind.dht.node`` load only that module. Call this before hivemind is imported; later it does
    nothing.

    A program that uses a name of the package itself (``hivemind.Optimizer``) loads its imports at that moment.
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
        # An import would do this.
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, package)


def _do_without_semaphores() -> None:
    """Replace process locks by thread locks if none can be created: hivemind creates locks when it is imported.

    Process locks are in /dev/shm, which may be read-only in a container. The parts of hivemind used here need none.
    """
    try:
        multiprocessing.Lock()
    except OSError:
        multiprocessing.Lock = threading.Lock  # type: ignore[assignment]


@functools.cache
def _imports_of(package: ModuleType) -> dict[str, tuple[str, str]]:
    """Return the names that ``from M import a as b`` binds at the top of the package's `__init__`: b -> (M, a)."""
    loader = package.__loader__
    source = loader.get_source(package.__name__) if isinstance(loader, InspectLoader) else None
    found: dict[str, tuple[str, str]] = {}
    for statement in ast.parse(source or "").body:
        if isinstance(statement, ast.ImportFrom):
            relative = "." * statement.level + (statement.module or "")
            module = importlib.util.resolve_name(relative, package.__name__)
            # Imports from the package itself are submodules.
            if module != package.__name__:
                found |= {alias.asname or alias.name: (module, alias.name) for alias in statement.names}
    return found
