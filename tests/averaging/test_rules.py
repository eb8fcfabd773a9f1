"""The rules compute the same bits as long as their number is the same."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

import averaging.rules
from averaging.outer import outer_step
from averaging.rules import RULES
from tests.kit.averages import rules_digests
from tests.kit.averages.rules_digests import FOLDER, RELEASED, all_digests, digests_of_parts, path_of

ROOT = Path(__file__).parents[2]
WHAT_TO_DO = (
    f"rules {RULES} compute other bits than before. Undo it, or raise RULES in averaging/rules.py once rules {RULES} "
    "are released; until then `python -m tests.kit.averages.rules_digests` writes their digests anew"
)


def test_the_bits_of_these_rules_are_what_they_were() -> None:
    golden = json.loads(path_of(RULES).read_text())
    found = all_digests()
    assert found.keys() == golden.keys()
    assert [name for name in found if found[name] != golden[name]] == [], WHAT_TO_DO


def test_released_digests_never_change() -> None:
    numbers = sorted(int(path.stem) for path in FOLDER.glob("*.json"))
    assert numbers == list(range(1, RULES + 1))
    assert {number: hashlib.sha256(path_of(number).read_bytes()).hexdigest() for number in RELEASED} == RELEASED
    assert set(range(1, RULES)) <= RELEASED.keys(), "earlier rules are released: put the SHA-256 of their file there"


def test_digests_notice_a_change_of_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(anchor: object, momentum: object, gradient: object, rate: float, beta: float, change: object) -> None:
        outer_step_into(anchor, momentum, gradient, float(np.nextafter(np.float32(rate), np.float32(1))), beta, change)

    before, outer_step_into = digests_of_parts(), outer_step.outer_step_into
    monkeypatch.setattr(rules_digests, "outer_step_into", step)
    after = digests_of_parts()
    assert [name for name in before if before[name] != after[name]] == ["outer step"]


def test_the_list_of_what_belongs_to_the_rules_names_what_there_is() -> None:
    listed = re.findall(r"^    (\S+/\S*) {2,}", averaging.rules.__doc__ or "", re.MULTILINE)
    assert len(listed) > 10
    assert [name for name in listed if not (ROOT / name).exists()] == []
