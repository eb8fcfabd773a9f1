"""A peer whose anchor is not the swarm's: it learns so, says so, takes over that fragment alone, and loses no work."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from averaging.rounds.round_facts import Fact, RoundCommitted, SentContribution
from peer.events.anchor_events import AnchorRepair, Fetched
from peer.events.peer_events import Event, JoinedRun
from peer.network.node.fragment_memory import persist
from peer.network.node.node import Node
from tests.kit.tiers import sampled
from tests.simulator.network.lines import LineSettings
from tests.simulator.peer import EPOCH_SECONDS, Life
from tests.simulator.result import SimulationResult
from tests.simulator.scenarios.spec import LIGHT_WORK, Fault, PeerSpec, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate

FORKED = 2
FRAGMENT = 1


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> dict[int, Life]:
    """The lives of a simulation's peers by index, as they begin."""
    found: dict[int, Life] = {}
    start = Life._start_network

    def start_seen(life: Life) -> None:
        start(life)
        found[life.index] = life

    monkeypatch.setattr(Life, "_start_network", start_seen)
    return found


def fork(node: Node, more_tokens: int) -> None:
    """Another lineage of one fragment, and the live parameters show it: as after a split of the network."""
    fragment = node.fragments[FRAGMENT]
    state = fragment.state
    change = np.full_like(state.anchor, 1e-3)
    state.anchor += change
    state.lineage_tokens += more_tokens
    state.refresh_digest()
    persist(node.mailbox, fragment)
    fragment.log.digests.clear()
    fragment.restart()
    node.desk.deliver(FRAGMENT, change, state.version)


def swarm_with_fork(
    lives: dict[int, Life], num_peers: int, more_tokens: int, seed: int, forked: tuple[int, ...] = (FORKED,)
) -> tuple[SimulationResult, list[tuple[int, Event]]]:
    """Forked peers differ from their third commit of the fragment on; the events from there."""
    seen: list[tuple[int, Event]] = []
    waiting = set(forked)

    def on_event(index: int, event: Event) -> None:
        fact = event.fact
        is_moment = isinstance(fact, RoundCommitted) and (fact.fragment, fact.version) == (FRAGMENT, 2)
        if is_moment and index in waiting:
            waiting.discard(index)
            # Not from inside of the commit.
            node = lives[index].node
            fragment = node.fragments[FRAGMENT]
            node.exchange._background.spawn(when_idle(fragment.busy, lambda: fork(node, more_tokens)))
        seen.append((index, event))

    spec = SimulationSpec(num_peers, 60, seed, tiny_manifest(seed), workload=LIGHT_WORK)
    result = simulate(spec, on_event)
    assert not waiting
    return result, seen


async def when_idle(busy: object, work: Callable[[], None]) -> None:
    async with busy:  # type: ignore[attr-defined]
        work()


def of(seen: list[tuple[int, Event]], kind: type[Fact]) -> list[tuple[int, Event]]:
    return [(index, event) for index, event in seen if isinstance(event.fact, kind)]


def after_fork(seen: list[tuple[int, Event]], *, is_done: bool) -> list[tuple[int, int]]:
    """(peer, fragment); two leaders may have closed the very first rounds before, which is not the matter here."""
    return [
        (index, event.fact.fragment)
        for index, event in seen
        if isinstance(event.fact, AnchorRepair) and event.fact.is_done == is_done
        if event.fact.version > 2 and event.fact.fragment == FRAGMENT
    ]


@pytest.mark.parametrize("more_tokens", sampled([10**7, 0, -1000], one_in=3))
@pytest.mark.parametrize("seed", sampled([1, 2], one_in=2))
def test_a_lone_fork_gives_in_whatever_its_tokens(lives: dict[int, Life], more_tokens: int, seed: int) -> None:
    result, seen = swarm_with_fork(lives, 4, more_tokens, seed)
    assert result.violations == ()
    assert result.anchors_equal
    repaired = [(index, event) for index, event in of(seen, AnchorRepair) if event.fact.is_done]
    assert set(after_fork(seen, is_done=True)) == {(FORKED, FRAGMENT)}
    if more_tokens > 0:
        assert after_fork(seen, is_done=False) == [(FORKED, FRAGMENT)]
        # Within one round of that fragment: its peers send every 8 inner steps of a second at most.
        began = next(
            event.at
            for index, event in seen
            if index == FORKED
            and isinstance(event.fact, RoundCommitted)
            and (event.fact.fragment, event.fact.version) == (1, 2)
        )
        assert repaired[-1][1].at - began < 20.0


@pytest.mark.parametrize(("num_peers", "forked"), sampled([(4, (2, 3)), (2, (1,))], one_in=2))
def test_tokens_in_no_signed_commit_do_not_decide_between_equal_sides(
    lives: dict[int, Life], num_peers: int, forked: tuple[int, ...]
) -> None:
    """Whatever a side claims, the same one gives in."""
    moved = []
    for more_tokens in (-1000, 10**7):
        result, seen = swarm_with_fork(lives, num_peers, more_tokens, 3, forked=forked)
        assert result.violations == ()
        assert result.anchors_equal
        moved.append({index for index, _ in after_fork(seen, is_done=True)})
    assert moved[0] == moved[1]
    assert moved[0] in (set(forked), set(range(num_peers)) - set(forked))


@pytest.mark.parametrize(("num_peers", "faster"), sampled([(2, 0), (2, 1), (4, 0), (4, 1)], one_in=4))
def test_of_two_equal_sides_of_a_split_the_one_with_more_signed_tokens_wins(num_peers: int, faster: int) -> None:
    """Both go on by themselves, one at twice the speed, for longer than results are kept."""
    half = num_peers // 2
    sides = tuple(range(half)), tuple(range(half, num_peers))

    def profile(index: int) -> PeerSpec:
        return PeerSpec("all", LineSettings(2e7, 1e8, 0.03, 0.0), 0.4 if index in sides[faster] else 0.8)

    seen: list[tuple[int, Event]] = []
    starts = tuple(Fault(1.0 + 0.3 * index, "start", (index,)) for index in range(num_peers))
    spec = SimulationSpec(
        num_peers,
        10,
        1,
        tiny_manifest(1, combine="centered_clip"),
        (*starts, Fault(15.0, "partition", sides[1]), Fault(60.0, "heal")),
        profiles=tuple(profile(index) for index in range(num_peers)),
        duration_seconds=90.0,
        workload=LIGHT_WORK,
    )
    result = simulate(spec, lambda index, event: seen.append((index, event)))
    assert result.violations == ()
    assert result.anchors_equal
    # Whoever gives in first, of each fragment; right afterwards two leaders may close one round each.
    first: dict[int, int] = {}
    for index, event in of(seen, AnchorRepair):
        if event.fact.is_done and event.at > EPOCH_SECONDS + 60.0:
            first.setdefault(event.fact.fragment, index)
    assert first.keys() == {0, 1}
    assert set(first.values()) <= set(sides[1 - faster])


# --- joining ---


# With others, such as 2, a round closes while the first offer is on its way, and the first work is one version old.
@pytest.mark.parametrize("seed", sampled([3, 5, 6], one_in=3))
def test_a_joiner_is_ready_with_the_newest_versions_and_in_the_next_round_with_work(
    lives: dict[int, Life], seed: int
) -> None:
    seen: list[tuple[int, Event]] = []
    manifest = tiny_manifest(seed)
    late = (Fault(15.0, "start", (3,)),)
    spec = SimulationSpec(4, 60, seed, manifest, late, step_seconds=(0.5, 0.5), workload=LIGHT_WORK)
    result = simulate(spec, lambda index, event: seen.append((index, event)))
    assert result.violations == ()
    fetched = [event for index, event in of(seen, Fetched) if index == 3]
    (caught_up,) = [event for event in fetched if event.fact.is_done]
    progress = [event.fact for event in fetched if not event.fact.is_done]
    assert (progress[-1].share, progress[-1].seconds_left) == (1.0, 0.0)
    assert caught_up.at > EPOCH_SECONDS + 15.0
    (joined,) = [event for index, event in of(seen, JoinedRun) if index == 3]
    for fragment in range(spec.manifest.averaging.num_fragments):
        rounds = {
            event.fact.version + 1: event.at
            for index, event in of(seen, RoundCommitted)
            if index == 0 and isinstance(event.fact, RoundCommitted) and event.fact.fragment == fragment
        }
        first = next(
            event
            for index, event in seen
            if index == 3 and isinstance(event.fact, SentContribution) and event.fact.fragment == fragment
        )
        # Ready with the newest version but for a round that closes just then; the first work is in the round after it.
        assert isinstance(joined.fact, JoinedRun)
        assert joined.fact.versions[fragment] >= max(version for version, at in rounds.items() if at < joined.at - 1.0)
        # A round of the others may close while its first steps are under way; their work is not lost.
        assert first.fact.staleness <= 1
        assert first.fact.version == max(version for version, at in rounds.items() if at < first.at)
        contributors = [
            event.fact.contributors
            for index, event in of(seen, RoundCommitted)
            if index == 0
            and isinstance(event.fact, RoundCommitted)
            and (event.fact.fragment, event.fact.version) == (fragment, first.fact.version)
        ]
        assert all(lives[3].node.me in names for names in contributors)
