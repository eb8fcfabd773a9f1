"""The signed commits that a peer keeps outlive it: a restart must not make hours of signed work weigh nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from averaging.fragment.runtime import FragmentRuntime
from averaging.rounds.round_facts import RoundCommitted
from averaging.signing.commit_log import MAX_LOGGED_COMMITS
from averaging.signing.round_signatures import Scope
from averaging.wire.field_checks import Limits
from averaging.wire.frames import commit_digest, decode, encode
from averaging.wire.messages import DIGEST_BYTES, Commit, RosterEntry, ShardResult
from dht.ground.host import PeerId
from dht.identity.keys import peer_id_of
from peer.checkpoint.checkpoint import CheckpointFolder, CheckpointOwner, list_checkpoints
from peer.checkpoint.checkpoint_facts import Totals
from peer.checkpoint.kept_commits import unpacked_commits
from peer.events.anchor_events import AnchorRepair, Fetched
from peer.events.peer_events import Event
from peer.network.node.checkpoint_keeper import CheckpointKeeper
from peer.network.node.fragment_memory import persist
from peer.network.node.node import Node
from tests.kit.notaries import CHECKER, SCOPE, signed
from tests.kit.tiers import sampled
from tests.kit.trainer.checkpoint_peer import ME, Peer, run
from tests.kit.trainer.returning_peer import LaterState, return_to
from tests.simulator import peer as simulated_peer
from tests.simulator.network.lines import LineSettings
from tests.simulator.peer import EPOCH_SECONDS, Life
from tests.simulator.result import SimulationResult
from tests.simulator.scenarios.spec import LIGHT_WORK, Fault, PeerSpec, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate

NEVER = 1e9


def at_once(work: Coroutine[Any, Any, None]) -> None:
    """What never waits, from where nothing can be waited for."""
    with pytest.raises(StopIteration):
        work.send(None)


async def save(keeper: CheckpointKeeper) -> None:
    """The network side alone: simulated trainers keep nothing."""
    draft = keeper.folder.begin()
    for fragment in keeper.fragments:
        await keeper._add(draft, fragment)
    draft.finish(Totals(), has_trainer=False, is_last=False)


# --- two peers with one lineage behind them, in virtual time ---


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Simulated peers have checkpoints, written when they crash; returns where."""

    def node_of(who: Any, manifest: Any, ports: Any, mailbox: Any) -> Node:
        owner = CheckpointOwner(who.run_id, who.identity.peer_id, manifest.hash, bytes(32), mailbox.sizes)
        folder = CheckpointFolder(tmp_path / who.identity.peer_id / "checkpoints", owner, NEVER)
        return Node(who, manifest, ports, mailbox, folder)

    kill = Life.kill

    def kill_saved(life: Life) -> None:
        assert life.node.keeper is not None
        at_once(save(life.node.keeper))
        kill(life)

    monkeypatch.setattr(simulated_peer, "node_type_of", lambda lie: node_of)
    monkeypatch.setattr(Life, "kill", kill_saved)
    return tmp_path


SPLIT, LONG, BACK, END = 30.0, 130.0, 160.0, 215.0
"""Seconds: the short side stops; the long one stops, and the short one is back alone; the long one is back."""


def back_from_checkpoints(num_each: int, short_back: float) -> tuple[SimulationResult, list[tuple[int, Event]]]:
    """Peers with even indices stop early and come back first; those with odd ones go on four times as long."""
    short = tuple(range(0, 2 * num_each, 2))
    long = tuple(range(1, 2 * num_each, 2))
    # The short side is the faster one, so that it signs more once both are back and nothing else decides.
    profiles = tuple(
        PeerSpec("all", LineSettings(2e7, 1e8, 0.03, 0.0), 0.6 if index in long else 0.4)
        for index in range(2 * num_each)
    )
    faults = (
        *(Fault(1.0 + 0.3 * index, "start", (index,)) for index in range(2 * num_each)),
        Fault(SPLIT, "crash", short),
        Fault(LONG, "crash", long),
        Fault(short_back, "start", short),
        Fault(BACK, "start", long),
    )
    seen: list[tuple[int, Event]] = []
    spec = SimulationSpec(
        2 * num_each,
        10,
        1,
        tiny_manifest(1),
        tuple(sorted(faults, key=lambda fault: fault.at_seconds)),
        profiles=profiles,
        duration_seconds=END,
        workload=LIGHT_WORK,
        ends_with_goodbyes=False,
    )
    return simulate(spec, lambda index, event: seen.append((index, event))), seen


def who_gave_in(seen: list[tuple[int, Event]]) -> dict[int, int]:
    """Fragment -> index of the first peer that took over another anchor of it, once all were back."""
    first: dict[int, int] = {}
    for index, event in seen:
        if isinstance(event.fact, AnchorRepair | Fetched) and event.fact.is_done and event.at > EPOCH_SECONDS + BACK:
            fragments = (event.fact.fragment,) if isinstance(event.fact, AnchorRepair) else event.fact.fragments
            for fragment in fragments:
                first.setdefault(fragment, index)
    return first


def newest_version(seen: list[tuple[int, Event]], index: int, before: float) -> int:
    return max(
        event.fact.version
        for name, event in seen
        if name == index and isinstance(event.fact, RoundCommitted) and event.at < EPOCH_SECONDS + before
    )


@pytest.mark.parametrize(
    ("num_each", "short_back"),
    sampled([(1, LONG + 1.0), (1, BACK - 1.0), (2, LONG + 1.0), (2, BACK - 1.0)], one_in=4),
)
def test_the_longer_signed_work_wins_after_restarts_whoever_is_back_first(
    on_disk: Path, num_each: int, short_back: float
) -> None:
    """With 30 s alone, and with none: all come back at once."""
    result, seen = back_from_checkpoints(num_each, short_back)
    assert result.violations == ()
    assert result.anchors_equal
    assert newest_version(seen, 1, BACK) > newest_version(seen, 0, BACK) + 8
    gave_in = who_gave_in(seen)
    assert gave_in.keys() == {0, 1}
    assert all(index % 2 == 0 for index in gave_in.values())


# --- what is read back, and what is left out ---

OTHERS = tuple(sorted(peer_id_of(bytes([number]) * 32) for number in (1, 2)))


def chain_to(version: int, fragment: int, size: int, count: int, scope: Scope = SCOPE) -> list[Commit]:
    """Signed commits that lead to `version`, each naming the one before."""
    commits: list[Commit] = []
    for number in range(version - count, version):
        roster = tuple(RosterEntry(name, 10, 1, number, number) for name in OTHERS)
        shard = ShardResult(reducer=0, start=0, end=size, digest=b"d" * 16, included=(0, 1))
        previous = commit_digest(commits[-1]) if commits else b""
        anchor_digest = hashlib.sha256(f"{fragment} {number}".encode()).digest()[:DIGEST_BYTES]
        commit = Commit(fragment, number, 0, OTHERS[0], anchor_digest, roster, (shard,), previous=previous)
        commits.append(signed(commit, scope))
    return commits


VERSION, COUNT = 40, 30


def saved_peer(folder: Path, count: int = COUNT, scope: Scope = SCOPE, version: int = VERSION) -> Peer:
    """A peer after some rounds, whose checkpoint is in `folder`."""

    async def scene() -> Peer:
        peer = Peer(folder)
        peer.begin()
        for fragment in peer.fragments:
            fragment.state.version = version
            fragment.state.lineage_tokens = 20 * version
            fragment.log.replace(chain_to(version, fragment.index, fragment.state.num_values, count, scope))
            fragment.restart()
            persist(peer.mailbox, fragment)
        await peer.save()
        return peer

    saved: Peer = run(scene())
    return saved


class Nobody:
    """A fetcher in an empty swarm."""

    async def fetch_better(self, *_: object) -> dict[int, tuple[PeerId, ...]]:
        return {}


def frames_of(fragments: list[FragmentRuntime]) -> list[list[bytes]]:
    return [fragment.log.page(0) for fragment in fragments]


def newest_folder(peer: Peer) -> Path:
    return list_checkpoints(peer.folder.path)[0]


def test_commits_come_back_with_their_anchors(tmp_path: Path) -> None:
    before = saved_peer(tmp_path)
    peer, _ = return_to(tmp_path, Nobody())  # type: ignore[arg-type]
    assert [fragment.state.version for fragment in peer.fragments] == [VERSION] * 3
    assert frames_of(peer.fragments) == frames_of(before.fragments)
    assert [fragment.log.tokens_since(VERSION - COUNT, VERSION) for fragment in peer.fragments] == [20 * COUNT] * 3


def test_those_of_a_lineage_that_is_left_at_the_start_are_left_too(tmp_path: Path) -> None:
    before = saved_peer(tmp_path)
    size = before.fragments[1].state.num_values
    later = chain_to(VERSION + 9, 1, size, 5)
    peer, _ = return_to(tmp_path, LaterState(size, VERSION + 9, tuple(later)))
    assert frames_of(peer.fragments)[1] == [encode(commit) for commit in later]
    assert frames_of(peer.fragments)[2] == frames_of(before.fragments)[2]


def test_a_whole_log_comes_back(tmp_path: Path) -> None:
    saved_peer(tmp_path, 600, version=700)
    peer, _ = return_to(tmp_path, Nobody())  # type: ignore[arg-type]
    assert [len(fragment.log) for fragment in peer.fragments] == [MAX_LOGGED_COMMITS] * 3


SIZES = (100, 200)


def heavier(frames: list[Any]) -> list[Any]:
    """More tokens in the newest commit."""
    commit, _ = decode(frames[-1], ME, Limits(SIZES, 0))
    assert isinstance(commit, Commit)
    roster = tuple(replace(entry, tokens=10**6) for entry in commit.roster)
    return [*frames[:-1], encode(replace(commit, roster=roster))]


WRONG: dict[str, tuple[Callable[[list[Any]], object], str]] = {
    "of another fragment": (lambda _: [encode(one) for one in chain_to(VERSION, 1, SIZES[1], 3)], "another fragment"),
    "the newest one taken away": (lambda frames: frames[:-1], f"lead to version {VERSION - 1}"),
    "heavier": (heavier, "is not signed"),
    "no list": (lambda _: 7, "different version"),
    "a map": (lambda _: {"a": 1}, "damaged"),
    "texts": (lambda _: ["x"], "damaged"),
    "no commits": (lambda _: [b"x"], "not a commit"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_commits_is_said(name: str) -> None:
    change, sentence = WRONG[name]
    frames = [encode(commit) for commit in chain_to(VERSION, 0, SIZES[0], COUNT)]
    with pytest.raises(ValueError, match=sentence):
        unpacked_commits(msgpack.packb(change(frames)), 0, VERSION, SIZES, CHECKER)


def test_commits_before_a_gap_are_left_out() -> None:
    frames = [encode(commit) for commit in chain_to(VERSION, 0, SIZES[0], COUNT)]
    del frames[10]
    assert len(unpacked_commits(msgpack.packb(frames), 0, VERSION, SIZES, CHECKER)) == COUNT - 11


def test_commits_of_another_run_are_left_out(tmp_path: Path, caplog: Any) -> None:
    saved_peer(tmp_path, scope=Scope("another", bytes(32)))
    peer, _ = return_to(tmp_path, Nobody())  # type: ignore[arg-type]
    assert [len(fragment.log) for fragment in peer.fragments] == [0] * 3
    assert caplog.text.count("is not signed by its leader") == 3
