"""Loads our `peer.import_path` by its file, because the name `peer` may refer to a module of the running script."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

_NAME = "murmuration.import_path"


def import_path() -> ModuleType:
    """Return our `peer.import_path`, which is loaded once; importing this file loads no other module."""
    if _NAME not in sys.modules:
        path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "peer", "import_path.py")
        spec = importlib.util.spec_from_file_location(_NAME, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[_NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[_NAME])
    return sys.modules[_NAME]
