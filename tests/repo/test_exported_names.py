"""`import murmuration`: its names are there, are those of the stub."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import murmuration
from peer.version import full_version

STUB = Path(murmuration.__file__).with_suffix(".pyi")
STABLE = {
    "join",
    "Swarm",
    "Event",
    "create_run",
    "create_custom_run",
    "NewRun",
    "RunManifest",
    "read_model",
    "ExportedModel",
    "load_export",
}
FAULTS = {"MurmurationError", "LocalFault", "UsageFault", "NobodyReachable", "Incompatible", "DeviceFault"}


def names_in_stub() -> dict[str, str]:
    """Name -> module, as type checkers see them."""
    imports = [node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or "": node.module or "" for node in imports for alias in node.names}


def test_no_public_name_is_lost() -> None:
    assert set(murmuration.__all__) == STABLE | FAULTS
    assert set(murmuration.__all__) <= set(dir(murmuration))
    assert murmuration.__version__ == full_version()


@pytest.mark.parametrize("name", sorted(STABLE | FAULTS))
def test_each_name_is_what_its_module_has(name: str) -> None:
    assert getattr(murmuration, name) is getattr(importlib.import_module(names_in_stub()[name]), name)


def test_type_checkers_see_the_same_names() -> None:
    assert names_in_stub() == murmuration._HOMES  # type: ignore[attr-defined]


def test_other_names_are_refused_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'murmuration' has no attribute 'jion'"):
        getattr(murmuration, "jion")  # noqa: B009
    assert not hasattr(murmuration, "peer_id")
