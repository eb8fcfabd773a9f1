"""hivemind's DHT can be had without the rest, and the rest is still there for whoever asks."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from dht.hivemind_parts import allow_parts_of_hivemind

allow_parts_of_hivemind()
import dht.hivemind_store

assert "hivemind.dht.node" in sys.modules
assert "scipy" not in sys.modules and "hivemind.averaging" not in sys.modules
import hivemind

allow_parts_of_hivemind()
assert hivemind.dht.DHT is sys.modules["hivemind.dht.dht"].DHT
assert hivemind.Optimizer.__name__ == "Optimizer" and "hivemind.averaging" in sys.modules
assert not hasattr(hivemind, "no_such_name")
"""


def test_the_dht_alone_and_then_everything():
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
