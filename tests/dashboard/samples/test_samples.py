"""Samples of the model: when they are asked for, what of an answer is believed, and what is done about a failure."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboard.history.history import open_history
from dashboard.history_facts import ModelSample, WrittenText
from dashboard.observe.dashboard_state import DashboardState
from dashboard.observe.shown_manifest import run_facts
from dashboard.samples.answer_check import MAX_ANSWER_BYTES, MAX_TEXT_LENGTH, NoAnswer, read_answer
from dashboard.samples.model_process import answer_of
from dashboard.samples.sample_loop import can_be_asked, follow_samples
from dashboard.samples.sample_schedule import PROMPTS, SamplePlan, kept, next_at, sample_plan
from dht.ground.errors import UsageFault
from dht.records.evaluation import Evaluation
from dht.records.signed_manifest import sign_run_record
from peer.view.run_view import NOWHERE, RunView
from tests.kit.clock import Clock
from tests.kit.dashboard.records import NOW, OWNER, RUN_ID, empty_state
from tests.kit.dashboard.scene import state_of

STATE = state_of()


def sample_at(at: float, version: int = 1) -> ModelSample:
    return ModelSample(at, version, 100, None, (WrittenText("a", "b"),))


def answer(**changes: Any) -> bytes:
    texts = [{"prompt": "def ", "text": "main():\n    pass"}]
    return json.dumps({"versions": [3, 4], "tokens": 700, "texts": texts, **changes}).encode()


# When


def test_flags_are_a_plan_or_a_sentence() -> None:
    assert sample_plan("90s", []) == SamplePlan(90.0, PROMPTS)
    assert sample_plan("1.5h", ["x", "y"]) == SamplePlan(5400.0, ("x", "y"))
    assert sample_plan("never", []) is None
    assert sample_plan("1h", [], Path("/")) == SamplePlan(3600.0, PROMPTS, "/")
    with pytest.raises(UsageFault, match="which is not a folder on this machine"):
        sample_plan("1h", [], Path("/nowhere"))
    for every in ("", "1", "h", "-1h", "1s", "9999d", "nan h", "1h1h"):
        with pytest.raises(UsageFault, match="expected a time from 20s to 31d"):
            sample_plan(every, [])
    with pytest.raises(UsageFault, match="201 characters"):
        sample_plan("1h", ["x" * 201])
    with pytest.raises(UsageFault, match="at most 8"):
        sample_plan("1h", ["x"] * 9)
    with pytest.raises(UsageFault, match="together"):
        sample_plan("never", ["x"])


def test_the_first_comes_at_once_and_the_time_between_two_doubles_up_to_what_was_asked() -> None:
    plan, samples = SamplePlan(600.0), (sample_at(NOW),)
    assert next_at(plan, ()) == 0
    for _ in range(8):
        samples = (*samples, sample_at(next_at(plan, samples)))
    gaps = [round(after.at - before.at) for before, after in itertools.pairwise(samples)]
    assert gaps == [60, 60, 120, 240, 480, 600, 600, 600]
    assert next_at(SamplePlan(20.0), (sample_at(NOW),)) == NOW + 20


def test_nothing_is_asked_of_a_run_that_cannot_answer_or_has_not_moved() -> None:
    state = STATE
    assert can_be_asked(state, ())
    assert not can_be_asked(state, (sample_at(NOW, state.view.num_rounds),))
    assert can_be_asked(state, (sample_at(NOW, state.view.num_rounds - 1),))
    assert not can_be_asked(empty_state(), ())
    assert not can_be_asked(replace(state, peers=()), ())
    assert not can_be_asked(replace(state, view=replace(state.view, committed_tokens=0)), ())


@pytest.mark.parametrize(
    ("model", "writes"),
    [
        ({}, True),
        ({"layout_digest": "ab" * 32, "config": "{}"}, True),
        ({"layout_digest": "ab" * 32, "config": "{}", "mask_token": 5}, False),
        ({"layout_digest": "ab" * 32}, False),
    ],
)
def test_which_models_write(model: dict[str, Any], writes: bool) -> None:
    record = sign_run_record(RUN_ID, json.dumps({"revision": 1, "model": model}).encode(), OWNER)
    state = replace(STATE, run=run_facts(record))
    assert can_be_asked(state, ()) is writes


def test_of_too_many_the_first_the_newest_and_some_of_every_age_stay() -> None:
    hours = tuple(sample_at(NOW + 3600.0 * hour) for hour in range(400))
    found: tuple[ModelSample, ...] = ()
    for one in hours:
        found = kept((*found, one), 50)
    assert len(found) == 50
    assert (found[0], found[-1]) == (hours[0], hours[-1])
    ages = [(one.at - NOW) / 3600 for one in found]
    assert sum(age <= 40 for age in ages) >= 15
    assert sum(age >= 200 for age in ages) >= 5
    assert kept(hours[:50], 50) == hours[:50]


# What is believed


def test_an_answer_is_a_sample() -> None:
    texts = (WrittenText("def ", "main():\n    pass"),)
    near, far = RunView(evaluation=Evaluation(2.5, 9)), RunView(evaluation=Evaluation(5.3, 500))
    assert read_answer(answer(), NOW, near) == ModelSample(NOW, 7, 700, 2.5, texts)
    assert read_answer(answer(), NOW, far) == ModelSample(NOW, 7, 700, None, texts)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"\xff",
        answer(tokens=-1),
        answer(tokens="7"),
        answer(versions=[2**60]),
        answer(texts=[{"prompt": "x", "text": 7}]),
        answer(texts=[{"prompt": "x", "text": "y"}] * 9),
        answer(texts=[]),
        answer(texts=[{"prompt": "x", "text": " \n"}]),
    ],
)
def test_another_answer_is_a_sentence(raw: bytes) -> None:
    with pytest.raises(NoAnswer, match=r"wrote no text|cannot be used") as caught:
        read_answer(raw, NOW, NOWHERE)
    assert not caught.value.lasts


def test_texts_are_short_and_obey_nobody() -> None:
    hostile = "\x1b[2J\u202e\x00a\tb\r\n" + "z\u0301" + "\u0301" * 50 + "\n" * 100 + "x" * 5000
    found = read_answer(answer(texts=[{"prompt": "p\x07", "text": hostile}]), NOW, NOWHERE)
    (one,) = found.texts
    assert one.prompt == "p\ufffd"
    assert one.text.startswith("\ufffd[2J\ufffd\ufffda")
    assert one.text.count("\u0301") == 2
    assert all(char == "\n" or char.isprintable() for char in one.text)
    assert len(one.text) <= MAX_TEXT_LENGTH
    assert one.text.count("\n") < 30


# The process


def code(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def ask(text: str, seconds: float = 60.0) -> bytes:
    return asyncio.run(answer_of(code(text), seconds))


def test_the_process_is_read_and_nothing_is_left_of_it() -> None:
    assert ask("print('hello', end='')") == b"hello"
    with pytest.raises(NoAnswer, match="code 3"):
        ask("raise SystemExit(3)")
    with pytest.raises(NoAnswer, match="SIGKILL"):
        ask("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(NoAnswer, match="answered with more than"):
        ask(f"print('x' * {MAX_ANSWER_BYTES + 1})")
    with pytest.raises(NoAnswer, match="took longer than 0 s"):
        ask("import threading; threading.Event().wait()", 0.2)
    with pytest.raises(NoAnswer, match="no process can be started"):
        asyncio.run(answer_of(["/nonexistent/python"], 5.0))


def test_the_process_sees_its_starter_go_by_its_input() -> None:
    shut = "import select, sys; print(bool(select.select([sys.stdin], [], [], 0)[0]), end='')"
    assert ask(shut) == b"False"


# In the history


def test_samples_outlive_a_restart(tmp_path: Path) -> None:
    kept_ones = tuple(sample_at(NOW + number, number) for number in range(3))

    async def check() -> None:
        for samples in (kept_ones, kept_ones[1:]):
            async with open_history(tmp_path / "run.sqlite", RUN_ID, clock=lambda: NOW, warn=print) as history:
                history.keep_samples(samples)
                assert history.view.samples == samples
            async with open_history(tmp_path / "run.sqlite", RUN_ID, clock=lambda: NOW, warn=print) as history:
                assert history.samples == history.view.samples == samples

    asyncio.run(check())


# For as long as the page is up


class Kept:
    def __init__(self) -> None:
        self.samples: tuple[ModelSample, ...] = ()

    def keep_samples(self, samples: tuple[ModelSample, ...]) -> None:
        self.samples = samples


def followed(
    answers: list[bytes | NoAnswer], states: Callable[[float], DashboardState], seconds: float
) -> tuple[Kept, list[str], list[float]]:
    """What is kept, told and asked (seconds since the beginning) in `seconds`; the last answer is given for ever."""
    clock, history, told, asked = Clock(NOW), Kept(), list[str](), list[float]()

    class Over(Exception):
        pass

    async def wait(step: float) -> None:
        clock.now += step
        if clock.now > NOW + seconds:
            raise Over

    async def one() -> bytes:
        asked.append(clock.now - NOW)
        found = answers[min(len(asked), len(answers)) - 1]
        if isinstance(found, NoAnswer):
            raise found
        return found

    async def run() -> None:
        plan = SamplePlan(3600.0, ("def ",))
        follow: Awaitable[None] = follow_samples(
            plan,
            lambda: history.samples,
            history.keep_samples,
            lambda: states(clock.now),
            one,
            lambda: clock.now,
            told.append,
            wait,
        )
        with pytest.raises(Over):
            await follow

    asyncio.run(run())
    return history, told, asked


def test_samples_come_and_are_kept() -> None:
    history, told, asked = followed([answer(versions=[n, n]) for n in range(1, 90)], lambda now: STATE, 7300.0)
    assert asked[0] == 2
    assert len(history.samples) == len(asked) >= 8
    assert not told
    assert history.samples[0].validation_loss == STATE.view.evaluation.loss
    assert history.samples[0].committed_tokens == 700


def test_a_sample_counts_no_more_tokens_than_the_page_does() -> None:
    """Its anchors are those with most tokens, where the page goes by the middle member."""
    young = replace(STATE, view=replace(STATE.view, committed_tokens=600))
    history, _, _ = followed([answer(versions=[n, n]) for n in range(1, 90)], lambda now: young, 100.0)
    assert {one.committed_tokens for one in history.samples} == {600}


def test_a_failure_is_one_sentence_and_tried_again_later_and_later() -> None:
    history, told, asked = followed([NoAnswer("it broke")] * 4 + [answer()], lambda now: STATE, 700.0)
    assert [sentence.endswith("it broke") for sentence in told] == [True] * 4
    assert len(history.samples) >= 1
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert gaps[:4] == [40, 80, 160, 320]


def test_a_model_that_does_not_write_is_asked_once_for_each_manifest() -> None:
    refusal = json.dumps({"problem": "the run trains pictures\x1b", "lasts": True}).encode()
    assert STATE.run is not None
    other = replace(STATE, run=replace(STATE.run, manifest_hash=b"other"))
    history, told, asked = followed([refusal], lambda now: STATE if now < NOW + 500 else other, 1000.0)
    assert len(asked) == len(told) == 2
    assert "the run trains pictures" in told[0]
    assert "\x1b" not in told[0]
    assert not history.samples
