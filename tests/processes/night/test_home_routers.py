"""Real peers behind home routers that translate addresses: each of them contributes to rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.nat_lab.spaces import what_is_missing

MISSING = what_is_missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

LAB = [sys.executable, "-m", "benchmarks.nat_lab", "--seeds", "2", "--minutes", "2", "--json"]


@pytest.mark.parametrize("nats", ["public,cone", "cone,cone", "cone,symmetric"])
def test_every_home_contributes_whatever_its_router(nats: str) -> None:
    root = Path(__file__).parents[3]
    ended = subprocess.run([*LAB, "--nats", nats], capture_output=True, text=True, cwd=root, check=False)
    assert ended.returncode == 0, ended.stderr
    facts = json.loads(ended.stdout)
    assert facts["rounds"] > 0
    assert len(facts["homes"]) == 2
    assert all(home["rounds"] > 0 for home in facts["homes"]), facts["homes"]
