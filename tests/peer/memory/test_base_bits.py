"""Given weights in fewer bits: the runs that allow it, and what a plan says about their memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dht.ground.errors import UsageFault
from peer.cli.app import run
from peer.config.manifest import RunManifest
from peer.memory.base_bits import base_num_bytes, check_base_bits

LLAMA_8B = {"model_type": "llama", "hidden_size": 4096, "dtype": "bfloat16", "tie_word_embeddings": False}
LORA = {"rank": 16, "targets": ["q_proj"]}


def run_of(adapter: dict[str, Any] | None = LORA, num_bytes: int = 16_060_522_496, **config: Any) -> RunManifest:
    section = {
        "vocab_size": 128_256,
        "config": json.dumps(LLAMA_8B | config, sort_keys=True, separators=(",", ":")),
        "num_parameters": 41_943_040,
        "layout_digest": "ab" * 32,
        "init": {"source": "folder", "digest": "cd" * 32, "num_bytes": num_bytes},
        **({} if adapter is None else {"adapter": adapter}),
    }
    return RunManifest.from_fields({"name": "big", "model": section})


def test_all_but_the_embeddings_shrink() -> None:
    """Llama of 8 B: 1.05 G values in embedding and head stay, 6.98 G become 8, or 4 and a scale of 32 for each 64."""
    kept, compressed = 2 * 128_256 * 4096, 8_030_261_248 - 2 * 128_256 * 4096
    assert base_num_bytes(run_of()) == 16_060_522_496
    assert base_num_bytes(run_of(), "8") == 2 * kept + compressed
    assert base_num_bytes(run_of(), "4") == 2 * kept + compressed * (4 + 32 / 64) / 8
    # One table where head and embedding are the same; values of a config without a type are float32.
    assert base_num_bytes(run_of(tie_word_embeddings=True), "8") == 2 * kept // 2 + compressed + kept // 2
    assert base_num_bytes(run_of(num_bytes=32_121_044_992, dtype="float32"), "8") == 4 * kept + compressed
    assert base_num_bytes(run_of(adapter=None), "8") == 0


def test_only_lora_stands_on_fewer_bits() -> None:
    check_base_bits(run_of(), "4")
    check_base_bits(run_of(None), "full")
    with pytest.raises(UsageFault, match=r"--base-bits 8 was given, but this run trains all.*with LoRA"):
        check_base_bits(run_of(None), "8")


def test_a_plan_follows_the_bits_of_the_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(run_of().to_bytes())

    def base_bytes(*flags: str) -> int:
        assert run(["plan", str(path), "--json", *flags]) == 0
        return int(json.loads(capsys.readouterr().out)["home"]["trainer_memory"]["base_bytes"])

    full, fewer = base_num_bytes(run_of()), base_num_bytes(run_of(), "4")
    assert (base_bytes(), base_bytes("--base-bits", "4")) == (full, fewer)
    path.write_bytes(run_of(None).to_bytes())

    def optimizer_bytes(*flags: str) -> tuple[int, int]:
        assert run(["plan", str(path), "--json", *flags]) == 0
        facts = json.loads(capsys.readouterr().out)
        return facts["home"]["trainer_memory"]["optimizer_bytes"], facts["disk_bytes"]

    (moments, disk), (fewer_moments, less_disk) = optimizer_bytes(), optimizer_bytes("--optimizer-bits", "8")
    assert moments == 8 * 41_943_040
    # Two bytes and two scales for 256 values.
    assert fewer_moments == 2 * 41_943_040 * (1 + 4 / 256)
    assert disk - less_disk == 3 * (moments - fewer_moments)
    for flags, sentence in ((["--base-bits", "4"], "a run with LoRA"), (["--base-bits", "5"], "one of full, 8, 4")):
        assert run(["plan", str(path), *flags]) == 2
        assert sentence in capsys.readouterr().err
