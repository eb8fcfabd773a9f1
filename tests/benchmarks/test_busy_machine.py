"""`bench_busy_machine` runs: never how fast."""

from __future__ import annotations

import json

import pytest

from benchmarks.training import bench_busy_machine


def test_both_arms_train_beside_a_busy_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def measured(arm: str, num_threads: int, seconds: float) -> float:
        asked.append((arm, num_threads))
        return 1.0 + len(asked)

    monkeypatch.setattr(bench_busy_machine, "_measured", measured)
    assert bench_busy_machine.main(["--busy", "0,1", "--pairs", "1", "--threads", "2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [row["busy"] for row in facts["rows"]] == [0, 1]
    assert asked == [(arm, 2) for arm in bench_busy_machine.ARMS] * 2
    assert facts["rows"][1]["libgomp's choice"] == 4.0


def test_a_worker_takes_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_busy_machine.main(["--worker", "--threads", "1", "--seconds", "0.01"]) == 0
    assert float(capsys.readouterr().out) > 0.0
