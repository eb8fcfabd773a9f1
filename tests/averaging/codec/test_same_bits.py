"""One log of commits has one result, whatever the machine that applies it is like.

Each condition is a process of its own, because vector instructions are chosen at a process's start.
Chunks of `averaging.outer.robust_mean` are left as they are: only one peer reduces a shard, and all apply the bytes it
sends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from averaging.codec import build_kernels, compiled_kernels
from tests.kit.averages.commit_log import CASES, NUM_ROUNDS

ROOT = Path(__file__).parents[3]
COMPILED = "compiled" if compiled_kernels.kernels() else "numpy"
VECTOR_INSTRUCTIONS = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
"""Those that numpy uses here beyond the ones it always does."""
CONDITIONS: dict[str, tuple[list[str], dict[str, str]]] = {
    "one thread": ([], {}),
    "two threads, compiled, small chunks, another order": (
        ["--threads", "2", "--kernels", COMPILED, "--chunk-values", "4096", "--order", "1"],
        {},
    ),
    "three threads, no vector instructions, odd chunks, a third order": (
        ["--threads", "3", "--chunk-values", "5001", "--order", "2"],
        {"NPY_DISABLE_CPU_FEATURES": " ".join(VECTOR_INSTRUCTIONS)},
    ),
    "compiled for the oldest machine": (["--kernels", COMPILED, "--order", "3"], {}),
}


def test_the_same_commits_give_the_same_bits_everywhere(tmp_path: Path) -> None:
    oldest: list[str] = []
    if COMPILED == "compiled":
        build_kernels.compile_library(build_kernels.SOURCE, tmp_path / "kernels.so", machines=[None])
        oldest = ["--compiled", str(tmp_path / "kernels.so")]
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tests.kit.averages.commit_log", *arguments, *(oldest if "oldest" in name else [])],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, (arguments, environment) in CONDITIONS.items()
    }
    printed = {name: process.communicate()[0] for name, process in running.items()}
    assert {name: process.returncode for name, process in running.items()} == dict.fromkeys(CONDITIONS, 0)
    found = {name: json.loads(text) for name, text in printed.items()}
    expected = found["one thread"]
    assert set(expected) == set(CASES)
    # Two digests a round, and nothing that stands still or is the same in two cases.
    assert len({digest for rounds in expected.values() for digest in rounds}) == 2 * NUM_ROUNDS * len(CASES)
    for name, rounds in found.items():
        for case in CASES:
            assert rounds[case] == expected[case], f"{case}: {name}"
