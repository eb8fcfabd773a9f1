"""The rate as a share of its peak, by the run's tokens: exact at the borders; wrong schedules get a sentence."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.config.access_sections import ChangeSection
from peer.config.learning_rate_schedule import (
    Cooldown,
    ScheduleSection,
    rate_factor,
)
from peer.config.manifest import RunManifest
from peer.network.membership.manifest_revisions import cooldown_at, describe_changes
from peer.owner.revision_start import first_token
from peer.view.run_view import run_view_of
from tests.kit.records import make_record

COSINE = ScheduleSection(kind="cosine", tokens=1000)
WSD = ScheduleSection(kind="wsd", tokens=1000)


def test_a_cosine_goes_from_the_peak_over_the_middle_to_the_floor_and_stays_there() -> None:
    assert [rate_factor(COSINE, tokens) for tokens in (0, 1000, 1001, 2**60)] == [1.0, 0.1, 0.1, 0.1]
    assert rate_factor(COSINE, 500) == pytest.approx(0.55)
    assert rate_factor(COSINE, 250) == pytest.approx(0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2)


def test_wsd_is_stable_until_the_decay_and_falls_by_one_minus_the_square_root() -> None:
    assert [rate_factor(WSD, tokens) for tokens in (0, 799, 800, 1000, 5000)] == [1.0, 1.0, 1.0, 0.1, 0.1]
    assert rate_factor(WSD, 850) == pytest.approx(0.1 + 0.9 * 0.5)
    assert ScheduleSection(kind="wsd", tokens=1000).decay_length == 200


def test_a_cool_down_goes_linearly_from_where_the_schedule_was_to_the_floor() -> None:
    stable = ScheduleSection()
    cooldown = Cooldown(1000, 400)
    shares = [rate_factor(stable, tokens, cooldown) for tokens in (0, 999, 1000, 1100, 1400, 9999)]
    assert shares == pytest.approx([1.0, 1.0, 1.0, 0.775, 0.1, 0.1])
    # Late in a cosine it starts from there, and it never lifts the rate.
    late = Cooldown(600, 10_000)
    assert rate_factor(COSINE, 600, late) == rate_factor(COSINE, 600) < 1
    assert rate_factor(COSINE, 1000, late) == 0.1


schedules = st.sampled_from([ScheduleSection(), COSINE, WSD, ScheduleSection(kind="wsd", tokens=50)])
cooldowns = st.none() | st.builds(Cooldown, st.integers(0, 2000), st.integers(1, 2000))


@given(schedules, cooldowns, st.lists(st.integers(0, 4000), min_size=2))
def test_the_share_never_rises(schedule: ScheduleSection, cooldown: Cooldown | None, tokens: list[int]) -> None:
    shares = [rate_factor(schedule, now, cooldown) for now in sorted(tokens)]
    assert all(0.0 <= later <= earlier <= 1.0 for earlier, later in itertools.pairwise(shares))


def test_the_rate_is_told_in_words() -> None:
    def said(**training: Any) -> str:
        return RunManifest.from_fields({"name": "told", "training": training}).training.rate_in_words

    assert said() == "0.003 throughout; training.schedule can lower it"
    wsd = {"kind": "wsd", "tokens": 2 * 10**9}
    assert said(schedule=wsd) == "0.003 at its peak, stable, then a decay over 2.00 G tokens of the swarm"


def test_a_cool_down_begins_where_the_middle_member_will_be() -> None:
    records = [make_record(name, versions=(10, 11), lineage_tokens=(900, 1000)) for name in "AB"]
    records += [make_record("C", versions=(10**6, 10**6), lineage_tokens=(2**50, 2**50)), make_record("D")]
    view = run_view_of(records)
    assert [first_token(view, version) for version in (0, 10, 15)] == [1000, 1000, 1500]
    assert first_token(run_view_of([make_record("D")]), 5) is None
    # Of two it is the same one whose tokens and version are taken.
    late = make_record("E", versions=(2, 2), lineage_tokens=(200, 200))
    view = run_view_of([records[0], late])
    assert [first_token(view, version) for version in (2, 10, 15)] == [200, 1000, 1500]


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ({"schedule": {"kind": "cosine"}}, "training.schedule: kind is 'cosine' without tokens; expected the number"),
        (
            {"schedule": {"kind": "wds", "tokens": 9}},
            "training.schedule.kind is 'wds'; expected one of constant, cosin",
        ),
        ({"schedule": {"batch_warmup_tokens": 5}}, "training.schedule.batch_warmup_tokens was removed"),
        (
            {"schedule": {"kind": "cosine", "tokens": 0}},
            "training.schedule.tokens is 0; expected a whole number from 1",
        ),
        ({"schedule": {"floor": 0.2}}, "training.schedule.floor was removed"),
        ({"schedule": {"kind": "cosine", "token": 9}}, "did you mean tokens?"),
        ({"schedule": 7}, "training.schedule is 7; expected a section with the fields kind, tokens"),
        ({"total_steps": 400}, "training.total_steps was removed; write the tokens"),
    ],
)
def test_a_wrong_schedule_is_refused_with_a_sentence(training: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"expected|did you mean|remove") as found:
        RunManifest.from_fields({"name": "wrong", "training": training})
    assert sentence in str(found.value)
    assert "\n" not in str(found.value)


def test_a_cool_down_counts_from_its_version_on_and_the_last_one_counts() -> None:
    first = ChangeSection(at_version=5, cooldown_from=100, cooldown_tokens=50)
    second = ChangeSection(at_version=9, cooldown_from=130, cooldown_tokens=20)
    plain = RunManifest(name="plain")
    manifest = plain.model_copy(update={"revision": 2, "changes": (first, second)})
    assert [cooldown_at(manifest, version) for version in (4, 5, 9)] == [None, Cooldown(100, 50), Cooldown(130, 20)]
    assert RunManifest.from_bytes(manifest.to_bytes()) == manifest
    assert manifest.hash == plain.hash
    said = describe_changes(manifest, plain)
    assert "the learning rate falls to its floor over 50 tokens after the first 100, from version 5" in said
    at_once = plain.model_copy(update={"changes": (ChangeSection(at_version=0, cooldown_from=7, cooldown_tokens=5),)})
    assert describe_changes(at_once, plain).endswith("over 5 tokens after the first 7")  # the token says when
    with pytest.raises(ValueError, match="is given; expected both"):
        ChangeSection(at_version=5, cooldown_tokens=50)
