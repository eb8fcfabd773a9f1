"""hivemind's DHT can be had without the rest, and the rest is still there for whoever asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.fresh_interpreter import HEAVY, run
from tests.kit.tiers import sampled

PARTS = """
from dht.p2pd.lazy_hivemind import allow_parts_of_hivemind
allow_parts_of_hivemind()
"""

ROOM = """
from dht.pylibp2p.protobuf_clash import make_room_for_libp2p
make_room_for_libp2p()
"""

DHT_ALONE = """
import dht.kademlia.dht_store, dht.p2pd.host, dht.observer.network

assert "hivemind.dht.node" in sys.modules
assert not heavy(), heavy()
"""

BOTH_LIBRARIES = """
import dht.pylibp2p.host

import libp2p.crypto.pb.crypto_pb2 as theirs
from hivemind.proto import crypto_pb2 as ours

assert ours.DESCRIPTOR.pool is not theirs.DESCRIPTOR.pool
assert not heavy(), heavy()
"""

EVERYTHING = """
import hivemind

allow_parts_of_hivemind()
assert hivemind.Optimizer.__name__ == "Optimizer" and heavy() >= {"torch", "hivemind.optim", "hivemind.averaging"}
assert hivemind.DHT is hivemind.dht.DHT is sys.modules["hivemind.dht.dht"].DHT
assert hivemind.utils.MPFuture is sys.modules["hivemind.utils.mpfuture"].MPFuture
assert hivemind.moe.Server is hivemind.Server
assert hivemind.__version__.startswith("1.")
assert hivemind.dht.node.DHTNode is hivemind.dht.DHTNode
assert not hasattr(hivemind, "no_such_name") and not hasattr(hivemind.utils, "no_such_name")
"""


def test_the_dht_alone_and_then_everything():
    run(HEAVY + PARTS + DHT_ALONE + EVERYTHING)


@pytest.mark.parametrize("preparation", sampled([PARTS + ROOM, ROOM + PARTS], one_in=2))
def test_the_dht_beside_libp2p(preparation: str):
    pytest.importorskip("libp2p", reason="the observer extra is not installed: pip install '.[observer]'")
    run(HEAVY + preparation + DHT_ALONE + BOTH_LIBRARIES)


def test_a_hivemind_that_is_loaded_stays_as_it_is(tmp_path: Path):
    """A package of that name: the real one takes seconds."""
    for name in ("", "utils", "dht"):
        (tmp_path / "hivemind" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "hivemind" / name / "__init__.py").write_text("" if name else "from . import dht, utils\n")
    run(
        "import sys, types, hivemind\nbefore = dict(sys.modules)\n"
        + PARTS
        + "assert all(sys.modules[name] is module for name, module in before.items())\n"
        + "assert type(hivemind) is type(hivemind.utils) is types.ModuleType",
        tmp_path,
    )
