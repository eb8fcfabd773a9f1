"""Random small swarms of whole peers, with the invariants of `tests.simulator.books` checked after every event.

python -m tests.simulator random --seed 1234        that seed again
python -m tests.simulator random --seeds 0:1000     many seeds; hostile swarms from 100000 on
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, get_args
from unittest import mock

import pytest

import averaging.outer.contribution_weights
from averaging.fragment.shard_store import ShardStore
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.rounds.round_machine import RoundMachine
from tests.kit.tiers import sampled
from tests.simulator.scenarios.random_swarms import (
    FIRST_HOSTILE_SEED,
    FIRST_KEYS_SEED,
    KEYS_OF_AN_HONEST_PEER,
    spec_of_seed,
    without_keys,
)
from tests.simulator.scenarios.spec import Fault, LieKind, SimulationSpec
from tests.simulator.simulation import simulate

SEEDS = (
    *range(120),
    *range(FIRST_HOSTILE_SEED, FIRST_HOSTILE_SEED + 24),
    *range(FIRST_KEYS_SEED, FIRST_KEYS_SEED + 12),
)
FAILED_ONCE = (212, 234, FIRST_KEYS_SEED + 18)
"""A commit was lost while a trainer got its start, twice; a liar led others from a good commit to its own anchor."""
KEYS_SEEDS = range(FIRST_KEYS_SEED, FIRST_KEYS_SEED + 200)
TRIED_SEEDS = 24
"""Swarms that are tried until one shows that a rule was taken away; the first ones do."""
LEAST_SHARE = 0.9
"""Of the control's rounds, over several seeds together."""


@pytest.mark.parametrize("seed", [*FAILED_ONCE, *sampled(SEEDS, one_in=12)])
def test_the_invariants_hold_after_every_event(seed):
    result = simulate(spec_of_seed(seed))
    assert result.violations == ()
    assert result.anchors_equal


@pytest.mark.parametrize("combine", ["mean", "centered_clip"])
@pytest.mark.parametrize("num_idle", [2, 4])
def test_members_that_come_back_with_nothing_do_not_outvote_signed_work(num_idle, combine):
    """Theirs is the anchor from which it went on; they met each other while they could not reach its member."""
    spec, idle = spec_of_seed(10), tuple(range(1, num_idle + 1))
    averaging = spec.manifest.averaging.model_copy(update={"combine": combine})
    result = simulate(
        replace(
            spec,
            num_peers=1 + num_idle,
            profiles=spec.profiles[:1] * (1 + num_idle),
            manifest=spec.manifest.model_copy(update={"averaging": averaging}),
            duration_seconds=60.0,
            faults=(
                Fault(0.0, "start", (0, *idle)),
                Fault(20.0, "crash", idle),
                Fault(20.1, "partition", idle),
                Fault(65.0, "start", idle),
                Fault(90.0, "heal"),
            ),
            tampering=None,
        )
    )
    assert result.violations == ()
    assert min(result.versions) > 5


@pytest.mark.nightly
def test_the_swarms_meet_what_they_are_for():
    seen = sum((Counter(simulate(spec_of_seed(seed)).events) for seed in range(60)), Counter())
    for what in ("repaired", "WorkReturned", "AttemptEnded", "MembersAwaited", "WorkLost"):
        assert seen[what] >= 2, what
    specs = [spec_of_seed(seed) for seed in range(200)]
    kinds = {fault.kind for spec in specs for fault in spec.faults}
    assert kinds >= {"crash", "restart_network", "stall", "partition", "leave", "sleep", "reset_line", "crash_leader"}
    assert {spec.manifest.averaging.mode for spec in specs} == {"carry", "eager", "sync", "streaming"}
    assert sum(spec.tampering is not None for spec in specs) > 50


def test_a_seed_is_one_swarm():
    for seed in (7, FIRST_HOSTILE_SEED, FIRST_KEYS_SEED):
        assert spec_of_seed(seed) == spec_of_seed(seed)
        assert spec_of_seed(seed) != spec_of_seed(seed + 1)


# ------------------------------------------------------------------------------------------------ free records


def test_records_of_further_keys_are_on_at_most_a_quarter_of_the_hosts():
    kinds = set()
    for seed in KEYS_SEEDS:
        lies = [profile.lie for profile in spec_of_seed(seed).profiles]
        hostile = [lie for lie in lies if lie is not None]
        kinds |= {lie.kind for lie in hostile}
        assert 0 < 4 * len(hostile) <= len(lies)
        assert {lie.num_keys for lie in hostile} == {KEYS_OF_AN_HONEST_PEER * (len(lies) - len(hostile))}
        control = without_keys(spec_of_seed(seed))
        assert [replace(lie, num_keys=0) for lie in hostile] == [p.lie for p in control.profiles if p.lie is not None]
    assert len(kinds) > 0.8 * len(get_args(LieKind))


@pytest.mark.parametrize("seed", [25, 46, 169, 700, 811, 820])
def test_no_commit_of_liars_alone_is_followed_by_a_member_that_knows_others(seed):
    """In a first round, of a key that was met first, also by a repair; and of one of three live trainers."""
    result = simulate(spec_of_seed(FIRST_KEYS_SEED + seed))
    assert "followed liars" not in result.events
    assert result.violations == ()


@pytest.mark.nightly
def test_records_that_cost_nothing_stop_no_rounds():
    specs = [spec_of_seed(seed) for seed in KEYS_SEEDS[:40]]
    attacks, controls = [simulate(spec) for spec in specs], [simulate(without_keys(spec)) for spec in specs]
    rounds = [sum(result.rounds_committed for result in results) for results in (attacks, controls)]
    assert rounds[0] >= LEAST_SHARE * rounds[1]


# --------------------------------------------------------------------------------------- the books notice faults


@dataclass(frozen=True)
class Mutation:
    """A rule that is taken away, the invariants that then break, the first seed that is tried, and with which lie."""

    invariants: tuple[str, ...]
    patches: Callable[[], list[Any]]
    seed: int
    lie: LieKind | None = None


def _have_committed_work_wait(self, sent, start, end, part, beta):
    TAKE(self, sent, start, end, part, beta)
    self.residual[start:end] += self._decoded(sent.encoded, start, end)


def _give_up_all_that_waits(self, left_version, common_version, **told):
    SETTLE(self, left_version, common_version, **told)
    self._forget_waiting()


def _age_weighs_but_never_excludes(staleness, rule):
    return 1.0 / (1.0 + staleness)


def _patch(owner: Any, name: str, new: Any) -> Any:
    return mock.patch.object(owner, name, new)


SETTLE, TAKE = FragmentState.settle_in_new_lineage, FragmentState._take_from_overlay
MUTATIONS = {
    "nobody answers who has more": Mutation(
        ("fork", "anchors still differ"), lambda: [_patch(RoundMachine, "_hear_version", lambda *_: None)], 12
    ),
    "committed work waits again": Mutation(
        ("twice",), lambda: [_patch(FragmentState, "_take_from_overlay", _have_committed_work_wait)], 0
    ),
    "no age is too old": Mutation(
        ("age",),
        lambda: [_patch(averaging.outer.contribution_weights, "staleness_factor", _age_weighs_but_never_excludes)],
        FIRST_HOSTILE_SEED + 708,
        "old_work",
    ),
    "missed work does not return": Mutation(
        ("mass", "peer"), lambda: [_patch(FragmentState, "_return_work", lambda *_: None)], 3
    ),
    "a fork costs what was never sent": Mutation(
        ("mass",), lambda: [_patch(FragmentState, "settle_in_new_lineage", _give_up_all_that_waits)], 8
    ),
    "nobody gives a leader up": Mutation(
        ("wait", "settled", "anchors still differ"),
        lambda: [
            _patch(RoundMachine, "_silent_at", lambda *_: math.inf),
            _patch(RoundMachine, "_lose", lambda *_: None),
        ],
        251,
    ),
    "stores forget nothing": Mutation(("memory",), lambda: [_patch(ShardStore, "prune", lambda *_: None)], 1),
    "sent work still shows": Mutation(("peer",), lambda: [_patch(FragmentState, "after_send", lambda *_: None)], 2),
}


def _has(spec: SimulationSpec, lie: LieKind | None) -> bool:
    return lie is None or any(profile.lie is not None and profile.lie.kind == lie for profile in spec.profiles)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_books_notice_when_a_rule_is_taken_away(name):
    mutation = MUTATIONS[name]
    with ExitStack() as patches:
        for patch in mutation.patches():
            patches.enter_context(patch)
        fitting = (seed for seed in itertools.count(mutation.seed) if _has(spec_of_seed(seed), mutation.lie))
        for seed in itertools.islice(fitting, TRIED_SEEDS):
            if any(sentence.startswith(mutation.invariants) for sentence in simulate(spec_of_seed(seed)).violations):
                return
    raise AssertionError(f"none of {TRIED_SEEDS} swarms broke {mutation.invariants}")
