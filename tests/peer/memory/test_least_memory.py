"""A manifest or a model file of a few hundred bytes cannot take a machine's memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import DeviceFault
from peer.config.manifest import RunManifest
from peer.config.model_shapes import seed_sizes, shapes_of
from peer.memory import least_memory
from peer.memory.least_memory import check_memory, free_memory_bytes, least_memory_bytes
from peer.plan.memory_needs import trainer_memory

LARGE = 2**40
"""More than any machine of today has."""
WORST: list[tuple[str, dict[str, Any]]] = [
    ("d_model", {"model": {"d_model": 65_536}}),
    ("num_layers", {"model": {"num_layers": 512, "d_model": 16_384}}),
    ("vocab_size", {"model": {"vocab_size": 2**22, "d_model": 65_536}}),
    ("context", {"model": {"context": 2**20, "d_model": 65_536, "num_heads": 1, "num_layers": 1}}),
    ("batch_size", {"model": {"context": 2**20}, "training": {"batch_size": 65_536}}),
    ("accumulation_steps", {"training": {"batch_size": 65_536, "accumulation_steps": 65_536}}),
]


def manifest_of(fields: dict[str, Any]) -> RunManifest:
    return RunManifest.from_fields({"name": "tiny", **fields})


@pytest.mark.parametrize(("field", "fields"), WORST, ids=[name for name, _ in WORST])
def test_the_worst_value_of_a_size_is_refused_on_a_home_machine(field: str, fields: dict[str, Any]) -> None:
    manifest = manifest_of(fields)
    assert least_memory_bytes(manifest, "train") > 30e9
    with pytest.raises(DeviceFault, match=r"takes at least [0-9.]+ .B of memory here, but 16.0 GB are free"):
        check_memory(manifest, "train", 16 * 10**9)


def test_a_custom_model_of_any_size_is_refused_by_a_seed() -> None:
    model = {"num_parameters": 10**13, "layout_digest": "0" * 64}
    manifest = manifest_of({"model": model})
    with pytest.raises(DeviceFault, match=r"10\.0 T parameters\) takes at least 1.. TB"):
        check_memory(manifest, "serve", 64 * 10**9)


def test_an_unknown_memory_refuses_nothing() -> None:
    check_memory(manifest_of(WORST[0][1]), "train", None)


@given(layers=st.integers(1, 32), width=st.sampled_from([8, 64, 512, 4096]), vocab=st.integers(256, 50_000))
def test_no_more_is_asked_than_a_peer_is_planned_to_take(layers: int, width: int, vocab: int) -> None:
    model = {"num_layers": layers, "d_model": width, "num_heads": 4, "vocab_size": vocab, "context": 2}
    manifest = manifest_of({"model": model, "training": {"batch_size": 1}})
    num_values = sum(math.prod(shape) for _, shape in shapes_of(manifest))
    planned = trainer_memory(num_values)
    copies = planned.parameters_bytes + planned.gradients_bytes + planned.optimizer_bytes + planned.reference_bytes
    mailbox = least_memory_bytes(manifest, "serve")
    assert mailbox >= 12 * sum(seed_sizes(manifest))
    assert mailbox <= least_memory_bytes(manifest, "train on a GPU") <= least_memory_bytes(manifest, "train")
    # One step of one sequence of two tokens is little beside the copies.
    assert least_memory_bytes(manifest, "train") <= copies + mailbox + 8 * 2 * (vocab + layers * width) + 4096


def test_free_memory_knows_the_limit_of_a_container(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_memory_bytes()
    assert free is None or 0 < free < LARGE
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    monkeypatch.setattr(least_memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(least_memory, "_meminfo_bytes", lambda: 10**9)
    assert free_memory_bytes() == 3_000_000
    # What the kernel only keeps because nobody has needed the room is free.
    (tmp_path / "memory.stat").write_text("anon 500000\nfile 1400000\ninactive_file 800000\nactive_file 500000\n")
    assert free_memory_bytes() == 4_300_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory_bytes() == 10**9
