"""`bench_trainer` runs, on a model of no size: never how fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TINY = "--seconds 0.05 --pairs 1 --layers 1 --width 32 --vocab 300 --context 16 --batch 2 --json"


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_both_loops_train_and_a_pair_is_a_ratio(model: str) -> None:
    if model == "llama":
        pytest.importorskip("transformers")
    command = [
        sys.executable,
        "-m",
        "benchmarks.training.bench_trainer",
        "--arms",
        "alone",
        "--model",
        model,
        *TINY.split(),
    ]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2], timeout=200
    )
    assert shown.returncode == 0, shown.stderr
    (arm,) = json.loads(shown.stdout)["arms"]
    assert arm["median_ratio"] == arm["our_tokens_per_second"][0] / arm["bare_tokens_per_second"][0]
