"""Whether the dashboard's bundle is there to be tested."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

WEB = Path(__file__).parents[2] / "dashboard" / "web"


def load_web_build() -> ModuleType:
    """`dashboard/web/build.py`, which is a script and no part of a package."""
    spec = importlib.util.spec_from_file_location("dashboard_web_build", WEB / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def require_bundle() -> None:
    """Fail with what to do when the bundle is missing or old; skip only where it could not be downloaded."""
    if load_web_build().is_current():
        return
    why_not = WEB / "built" / "not-built.txt"
    if why_not.exists():
        pytest.skip(f"the dashboard's bundle could not be built here: {why_not.read_text(encoding='utf-8').strip()}")
    pytest.fail("the dashboard's bundle is not built from these sources; run: python dashboard/web/build.py")
