"""The commands under hostile records, members and files: exit codes and sentences, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.ground.errors import LocalFault
from peer.console import plain_output
from peer.observe import status
from tests.fuzz.commands import command_targets
from tests.fuzz.fuzzer import CORPUS, fuzz, problem_with
from tests.kit.tiers import examples

TARGETS = {target.name: target for target in command_targets()}
INPUTS_PER_TARGET = examples(12, by_day=5)
"""Each is a whole command; `python -m tests.fuzz` takes thousands."""
GIVES_A_VERDICT = ("peer_doctor",)
"""Whose exit code says what was found, on this machine too."""
FOUND = [path for path in sorted(CORPUS.glob("*/*.bin")) if path.parent.name in TARGETS]


@pytest.mark.parametrize("name", TARGETS)
def test_valid_input_is_taken(name: str) -> None:
    for data in TARGETS[name].seeds:
        if name in GIVES_A_VERDICT:
            TARGETS[name].take(data)
        else:
            TARGETS[name].read(data)


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_input_costs_a_sentence_at_most(name: str) -> None:
    outcome = fuzz(TARGETS[name], seconds=0.0, num_inputs=INPUTS_PER_TARGET, seed=0)
    assert outcome.num_inputs == INPUTS_PER_TARGET
    assert not outcome.findings


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_found_once_stays_mended(path: Path) -> None:
    assert problem_with(TARGETS[path.parent.name], path.read_bytes()) == ""


def _bug(*arguments: object) -> None:
    raise KeyError("planted")


def _escape(*arguments: object) -> None:
    raise LocalFault("a\x1b[2Jb")


def test_the_frame_finds_planted_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGETS["peer_status"]
    monkeypatch.setattr(status, "status_facts", _bug)
    assert "KeyError: 'planted'" in problem_with(target, target.seeds[0])
    monkeypatch.setattr(status, "status_facts", _escape)
    assert problem_with(target, target.seeds[0]) == ""
    monkeypatch.setattr(plain_output, "printable", lambda text, keep: text)
    assert "printed ['0x1b']" in problem_with(target, target.seeds[0])
