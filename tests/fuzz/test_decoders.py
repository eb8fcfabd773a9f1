"""Decoders under a short run of the fuzzer, and under everything that it ever found."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.wire import frames
from dht.ground.errors import PeerFault
from tests.fuzz import fuzzer
from tests.fuzz.fuzzer import CORPUS, MAX_INPUT_BYTES, corpus_of, fuzz, mutations, problem_with
from tests.fuzz.messages import one_of_each_kind
from tests.fuzz.targets import ALICE, BOB, Target, all_targets

TARGETS = all_targets()
INPUTS_PER_TARGET = 300
FOUND = [path for path in sorted(CORPUS.glob("*/*.bin")) if path.parent.name in TARGETS]
ENDS_WITH_ITS_STREAM = ("frames",)


@pytest.mark.parametrize("name", TARGETS)
def test_valid_input_is_read(name: str) -> None:
    target = TARGETS[name]
    assert target.seeds
    for data in target.seeds:
        if name in ENDS_WITH_ITS_STREAM:
            with pytest.raises(PeerFault):
                target.read(data)
        else:
            target.read(data)


def test_messages_of_every_kind_are_begun_with() -> None:
    kinds = {type(message).KIND for message in one_of_each_kind(*sorted((ALICE.peer_id, BOB.peer_id)))}
    assert kinds == set(frames.KINDS)


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_input_costs_a_documented_fault_at_most(name: str) -> None:
    outcome = fuzz(TARGETS[name], seconds=0.0, num_inputs=INPUTS_PER_TARGET, seed=0)
    assert outcome.num_inputs == INPUTS_PER_TARGET
    assert not outcome.findings


@given(st.sampled_from(sorted(TARGETS)), st.binary(max_size=400))
def test_any_bytes_cost_a_documented_fault_at_most(name: str, data: bytes) -> None:
    assert problem_with(TARGETS[name], data) == ""


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_found_once_stays_mended(path: Path) -> None:
    assert problem_with(TARGETS[path.parent.name], path.read_bytes()) == ""


def test_the_fuzzer_finds_planted_bugs_and_repeats_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(data: bytes) -> None:
        if len(data) > 3 and data[2] > 0x80:
            raise KeyError("planted")
        if not data.startswith(b"good"):
            raise PeerFault("", "is garbage")

    planted = Target("planted", read, (b"good input",))
    first, again = mutations(planted, [], 7), mutations(planted, [], 7)
    assert all(next(first) == next(again) for _ in range(200))
    assert all(len(next(first)) <= MAX_INPUT_BYTES for _ in range(200))
    outcome = fuzz(planted, seconds=0.0, num_inputs=500, seed=1)
    assert outcome.findings
    assert all(data[2] > 0x80 and "KeyError: 'planted'" in what for data, what in outcome.findings)

    monkeypatch.setattr(fuzzer, "all_targets", lambda: {"planted": planted})
    monkeypatch.setattr(fuzzer, "CORPUS", tmp_path)
    assert fuzzer.main(["--target", "planted", "--inputs", "500", "--seed", "1", "--keep"]) == 1
    assert "KeyError" in capsys.readouterr().out
    kept = corpus_of("planted")
    assert kept
    assert all("planted" in problem_with(planted, data) for data in kept)


def test_a_slow_decoder_is_a_finding() -> None:
    assert problem_with(replace(TARGETS["pass"], most_seconds=-1.0), b"").startswith("took ")


def test_wrong_use_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuzzer.main(["--target", "wires"]) == 2
    assert "no decoder is called 'wires'; expected one of wire, " in capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert fuzzer.main(["--engine", "atheris"]) == 2
    assert "atheris is not installed; expected the extra `fuzz`; run: pip install" in capsys.readouterr().err
