"""Scores in tasks: what of a file is believed, when it is read again, and how they are drawn."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboard.history_facts import TaskScore
from dashboard.page.page import render_sections
from dashboard.page.task_scores import HEIGHT, MAX_CURVES, MAX_POINTS, WIDTH, score_curves
from dashboard.samples.score_file import MAX_SCORES, follow_scores, read_scores
from tests.kit.dashboard.records import HOSTILE_NAME, RUN_ID, TextOnly
from tests.kit.dashboard.scene import history_of_run, scores_of, state_of

SCORE = {"task": "arc_easy", "metric": "acc", "value": 0.5, "error": 0.01, "num_samples": 100}


def line(**changes: Any) -> bytes:
    facts = {"schema": 1, "run_id": RUN_ID, "versions": [3, 4], "tokens": 700, "limit": None, "scores": [SCORE]}
    return json.dumps({**facts, **changes}).encode() + b"\n"


def test_lines_of_peer_evaluate_are_scores_by_tokens() -> None:
    loss = json.dumps({"schema": 1, "run_id": RUN_ID, "versions": [1], "tokens": 9, "validation_loss": 2.5}).encode()
    scores, fault = read_scores(line(tokens=900, versions=[9]) + b"\n" + loss + b"\n" + line(), RUN_ID)
    assert not fault
    assert scores == (
        TaskScore("arc_easy", "acc", 0.5, 0.01, 100, 700, 7),
        TaskScore("arc_easy", "acc", 0.5, 0.01, 100, 900, 9),
    )


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"{", "Invalid JSON"),
        (b"\xff\n", "Invalid JSON"),
        (line(run_id="other.abc"), "is of run other.abc"),
        (line(tokens=-1), "tokens"),
        (line(tokens=2**60), "tokens"),
        (line(versions=[]), "versions"),
        (line(scores=[{**SCORE, "value": "high"}]), "scores.0.value"),
        (line(scores=[{**SCORE, "error": float("inf")}]), ""),
        (line(scores=[{**SCORE, "task": ""}]), "scores.0.task"),
    ],
)
def test_a_line_that_cannot_be_used_costs_itself(bad: bytes, words: str) -> None:
    scores, fault = read_scores(line() + bad.rstrip(b"\n") + b"\n" + line(tokens=800), RUN_ID)
    assert [score.committed_tokens for score in scores] == [700, 800]
    assert fault.startswith("line 2 ")
    assert words in fault


def test_scores_are_bounded_and_finite() -> None:
    many, _ = read_scores(line(scores=[SCORE] * MAX_SCORES) + line(tokens=800), RUN_ID)
    assert len(many) == MAX_SCORES
    assert many[-1].committed_tokens == 800
    assert read_scores(line(scores=[{**SCORE, "value": float("nan")}]), RUN_ID)[0] == ()
    (hostile,), _ = read_scores(line(scores=[{**SCORE, "task": "\x1b[2J" + "x" * 500}]), RUN_ID)
    assert hostile.task.startswith("[2Jx")
    assert len(hostile.task) == 60


def test_the_file_is_read_when_it_changed_and_a_fault_is_told_once(tmp_path: Path) -> None:
    path, shown, told = tmp_path / "scores.jsonl", list[tuple[TaskScore, ...]](), list[str]()
    steps = [b"", line(), line(), line() + line(), line() + b"{", line() + b"{", None, None, line()]

    class Over(Exception):
        pass

    async def wait(seconds: float) -> None:
        if not steps:
            raise Over
        content = steps.pop(0)
        if content is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
            os.utime(path, ns=(len(steps), len(steps)))

    with pytest.raises(Over):
        asyncio.run(follow_scores(path, RUN_ID, shown.append, told.append, wait))
    assert [len(scores) for scores in shown] == [0, 1, 2, 1, 1]
    words = ("No such file", "line 2 cannot be used", "the page continues without it")
    assert len(told) == len(words)
    assert all(word in sentence for word, sentence in zip(words, told, strict=True))


def test_each_metric_of_each_task_has_a_curve_within_its_box() -> None:
    curves = score_curves(scores_of(200))
    kinds = [{(point.score.task, point.score.metric) for point in points} for points in curves]
    assert kinds == [{("arc_easy", "acc")}, {("lambada", "perplexity")}]
    for points in curves:
        assert len(points) == MAX_POINTS
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y, _ in points)
        assert [x for x, _, _ in points] == sorted(x for x, _, _ in points)
    # What rises is drawn upwards.
    assert curves[0][0].y > curves[0][-1].y
    many = [replace(score, task=f"task{index}") for index, score in enumerate(scores_of(9))]
    assert len(score_curves(many)) == MAX_CURVES
    assert score_curves(scores_of()[:1] * 1)[0][0][:2] == (WIDTH / 2, HEIGHT / 2)


def test_the_page_draws_them_and_shows_nothing_without_any() -> None:
    def section(scores: tuple[TaskScore, ...]) -> TextOnly:
        return TextOnly(render_sections(state_of(), replace(history_of_run(), scores=scores))["evaluations"])

    said = " ".join(section(scores_of()).text.split())
    assert "arc_easy accuracy 0.550 ± 0.010 after 335 million tokens; 0.250 after 900 tokens; 2376 questions" in said
    assert section(scores_of()).tags.count("circle") == 14
    assert not section(()).text.strip()
    hostile = tuple(replace(score, task=HOSTILE_NAME) for score in scores_of())
    harmless = tuple(replace(score, task="x") for score in scores_of())
    assert section(hostile).tags == section(harmless).tags
