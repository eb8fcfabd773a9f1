"""What a returned peer does with the work it had saved: kept when the swarm cannot have it, given up when it may."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from averaging.arrays import F32
from averaging.codec.codec import make_codec
from averaging.fragment.runtime import FragmentRuntime
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard
from averaging.rounds.round_facts import WorkLost
from averaging.wire.messages import DIGEST_BYTES, Commit, RosterEntry, ShardResult
from dht.ground.compute import compute_inline
from dht.ground.host import PeerId
from peer.mailbox.slots import MergeKind
from peer.network.node.checkpoint_keeper import CheckpointKeeper, pauses
from peer.network.node.fragment_memory import build_fragments, persist
from peer.network.node.reporter import Reporter
from peer.network.node.starting_state import StartingState
from tests.kit.notaries import notary_of
from tests.kit.trainer.checkpoint_peer import ME, SECTION, Peer, saved_pair
from tests.kit.trainer.returning_peer import OTHER, LaterState, return_to
from tests.kit.trainer.saved_states import facts_to
from tests.kit.trainer.trainer_link import unsent_work


def commit_of(fragment: int, version: int, size: int, anchor: bytes, members: list[tuple[PeerId, int]]) -> Commit:
    """A commit whose roster has these (peer, sequence), all of them included."""
    roster = tuple(
        RosterEntry(peer_id=peer_id, base_version=version, tokens=10, steps=1, sequence=sequence)
        for peer_id, sequence in members
    )
    shard = ShardResult(reducer=0, start=0, end=size, digest=b"d" * 8, included=tuple(range(len(roster))))
    return Commit(fragment, version, 0, OTHER, anchor, roster, (shard,))


@pytest.fixture
def saved(tmp_path: Path) -> Peer:
    """A peer that has left in the middle of its work: some of it is unsent, some waits."""
    peer = saved_pair(tmp_path)
    peer.training.__exit__(None, None, None)

    async def leave() -> None:
        for fragment in peer.fragments:
            if fragment.state.unsent_tokens:
                fragment.state.send(40 + fragment.index)
        for _ in range(2):
            peer.step()
        saving = asyncio.create_task(peer.keeper.save(is_last=True))
        while not saving.done():
            peer.training.idle()
            await asyncio.sleep(0.005)

    asyncio.run(leave())
    return peer


def swarm_of(peer: Peer, gap: int, *members: tuple[PeerId, int], known: bool = True) -> LaterState:
    size, version = peer.fragments[1].state.num_values, peer.fragments[1].state.version
    here = peer.fragments[1].state.digest[:DIGEST_BYTES]
    commits = tuple(
        commit_of(1, number, size, anchor, [(OTHER, 1), *members] if number == version else [(OTHER, 1)])
        for number, anchor in zip(range(version, version + gap), chain([here], repeat(b"a" * 16)), strict=False)
    )
    return LaterState(size, version + gap, commits if known else ())


def waiting(peer: Peer) -> F32:
    """Own work of fragment 1 that no commit has: residual, under way, and not even sent."""
    state = peer.fragments[1].state
    values: F32 = state.anchor - state.shown() + unsent_work(peer.link, 1).numpy()
    return values


def test_unsent_work_and_error_feedback_survive_a_polite_absence_of_any_length(saved: Peer) -> None:
    before, error = waiting(saved), saved.fragments[1].state.residual.copy()
    assert error.any()
    assert saved.fragments[1].state.pending is not None
    # None of the swarm's commits has it: all of it waits again.
    peer, seen = return_to(saved.folder.path, swarm_of(saved, 3))
    np.testing.assert_allclose(waiting(peer), before, rtol=0, atol=1e-6)
    assert peer.fragments[1].state.pending is None
    assert not [event for event in seen if isinstance(event.fact, WorkLost)]
    assert max(float(one.abs().max()) for one in peer.sums()) < 1e-6
    # Credit and the run's clock go on, too.
    assert (peer.mailbox.network.rounds_contributed, peer.mailbox.network.run_tokens) == (5, 700)
    assert peer.mailbox.trainer.tokens == saved.mailbox.trainer.tokens


def test_what_was_committed_meanwhile_does_not_come_twice(saved: Peer) -> None:
    before = waiting(saved)
    pending = saved.fragments[1].state.pending
    assert pending is not None
    work = np.zeros_like(before)
    saved.fragments[1].state.codec.decode(pending.encoded, work)
    peer, _ = return_to(saved.folder.path, swarm_of(saved, 2, (ME, pending.sequence)))
    np.testing.assert_allclose(waiting(peer), before - work, rtol=0, atol=1e-6)
    assert max(float(one.abs().max()) for one in peer.sums()) < 1e-6


def test_what_is_under_way_is_given_up_when_nobody_knows_its_fate_but_the_rest_stays(saved: Peer) -> None:
    error, unsent = saved.fragments[1].state.residual.copy(), unsent_work(saved.link, 1).numpy()
    peer, _ = return_to(saved.folder.path, swarm_of(saved, 50, known=False))
    np.testing.assert_allclose(waiting(peer), error + unsent, rtol=0, atol=1e-6)


@pytest.mark.parametrize("known", [True, False])
def test_a_checkpoint_that_was_gone_on_from_keeps_nothing_when_the_swarm_has_gone_on(saved: Peer, known: bool) -> None:
    """The peer went on from it, perhaps sent this work in another session, and died before its next checkpoint."""
    found, _ = saved.folder.newest()
    assert found is not None
    found.note_use()
    peer, seen = return_to(saved.folder.path, swarm_of(saved, 2, known=known))
    assert not waiting(peer).any()
    # The other fragments went on without commits: nothing of theirs can be lost or double.
    for index in (0, 2):
        assert np.array_equal(peer.fragments[index].state.residual, saved.fragments[index].state.residual)
        torch.testing.assert_close(unsent_work(peer.link, index), unsent_work(saved.link, index), rtol=0, atol=1e-6)
    dropped = [event.fact for event in seen if isinstance(event.fact, WorkLost)]
    assert [(fact.fragment, fact.tokens > 0) for fact in dropped] == [(1, True)]
    assert max(float(one.abs().max()) for one in peer.sums()) < 1e-6


# --- a network process that was killed ---


def fragments_in(peer: Peer) -> list[FragmentRuntime]:
    """Of a new network process, over the mailbox that is there."""
    rule, codec = OuterRule("carry", 0.7, 0.5), make_codec("int4", 16)
    return build_fragments(ME, peer.owner.run_id, SECTION, rule, codec, peer.mailbox, notary_of(ME))


def network_process(peer: Peer) -> list[FragmentRuntime]:
    """What a successor finds in the mailbox."""
    fragments = fragments_in(peer)
    start = StartingState(
        peer.mailbox,
        fragments,
        peer.desk,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        None,
        None,  # type: ignore[arg-type]
        trains=True,
        compute=compute_inline,
        look_seconds=1.0,
    )
    assert all(start._resume(fragment) for fragment in fragments)
    return fragments


def test_a_killed_network_process_leaves_its_contribution_to_the_next(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    peer.begin()
    asyncio.run(peer.steps(9))
    for fragment in peer.fragments:
        fragment.state.send(70 + fragment.index)
        fragment.persist()
        persist(peer.mailbox, fragment)
    shown = [fragment.state.shown() for fragment in peer.fragments]
    successors = network_process(peer)
    for fragment, successor, before in zip(peer.fragments, successors, shown, strict=True):
        assert successor.state.pending is not None
        assert fragment.state.pending is not None
        assert np.array_equal(successor.state.shown(), before)
        assert replace(successor.state.pending, encoded=fragment.state.pending.encoded) == fragment.state.pending
    # Committed, it must not be found again.
    state = successors[0].state
    gradient = state.codec.encode(np.ones(state.num_values, dtype=np.float32))
    with successors[0].changing():
        state.apply([CommittedShard(0, state.num_values, gradient, 0.5, own_included=True)], 10)
        state.refresh_digest()
    assert [fragment.state.pending is None for fragment in network_process(peer)] == [True, False, False]


# --- mode streaming: the live parameters keep a share of every anchor ---


def test_a_blended_trainer_is_not_pulled_to_an_anchor_that_it_has(tmp_path: Path) -> None:
    section = SECTION.model_copy(update={"mode": "streaming"})
    peer = Peer(tmp_path, section=section)
    peer.begin()
    asyncio.run(peer.steps(9))
    asyncio.run(peer.desk.take_work())
    size = peer.fragments[0].state.num_values
    inbox = peer.mailbox.inbox
    assert inbox.try_post(MergeKind.BLEND, 0, np.ones(size, dtype=np.float32), version=3)
    peer.link.poll()
    live, unsent = peer._flat()[0]
    assert inbox.try_post(MergeKind.REBASE, 0, np.ones(size, dtype=np.float32), version=3)
    peer.link.poll()
    assert torch.equal(peer._flat()[0][0], live)
    assert inbox.try_post(MergeKind.REBASE, 0, np.full(size, 2.0, dtype=np.float32), version=4)
    peer.link.poll()
    torch.testing.assert_close(unsent_work(peer.link, 0), unsent, rtol=0, atol=1e-6)
    torch.testing.assert_close(peer._flat()[0][0], 2.0 - unsent, rtol=0, atol=1e-6)


def test_the_last_work_of_a_trainer_that_has_finished_is_taken_after_a_restart(tmp_path: Path) -> None:
    """It takes no new starting point any more; the successor must not wait for that."""
    peer = Peer(tmp_path)
    peer.begin()
    for _ in range(4):
        peer.step()
    assert peer.mailbox.outbox.take()
    peer.training.__exit__(None, None, None)

    async def scene() -> None:
        peer.desk.is_open = False
        await asyncio.wait_for(peer.desk.open(keeps_work=range(3)), 60.0)
        await peer.desk.take_work()

    asyncio.run(scene())
    assert peer.mailbox.outbox.take() == []
    assert any(fragment.state.unsent_tokens for fragment in peer.fragments)


class DyingDonors(LaterState):
    """The network process is killed while it takes over what it fetched."""

    def __init__(self, peer: Peer) -> None:
        size, version = peer.fragments[1].state.num_values, peer.fragments[1].state.version
        super().__init__(size, version + 3, ())
        self._peer = peer

    async def fetch_better(self, states: Any, adopt: Any, on_progress: Any) -> Any:
        self._peer.mailbox.states[1].writing = 1
        self._peer.mailbox.states[1].anchor[:5] = np.nan
        raise KeyboardInterrupt


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_network_process_that_is_killed_while_it_starts_leaves_a_start_to_the_next(
    tmp_path: Path, has_checkpoint: bool
) -> None:
    """The trainer has posted its initial parameters, once; nobody may wait for them again."""
    if has_checkpoint:
        saved_pair(tmp_path)
    peer = Peer(tmp_path)
    initial = [live.numpy().copy() for live, _ in peer._flat()]

    async def life(swarm: Any) -> list[FragmentRuntime]:
        fragments = fragments_in(peer)
        keeper = CheckpointKeeper(peer.folder, fragments, peer.mailbox, None, compute_inline, facts_to(peer.seen))
        start = StartingState(
            peer.mailbox,
            fragments,
            peer.desk,
            None,  # type: ignore[arg-type]
            swarm,
            keeper,
            Reporter(ME, peer.mailbox, lambda: 5.0, lambda: 5.0, peer.seen.append),
            trains=True,
            compute=compute_inline,
            look_seconds=1.0,
        )
        starting = asyncio.create_task(start.run())
        for _ in range(3000):  # as many looks; a start that waits for what never comes does not end
            if starting.done():
                break
            peer.link.try_post_initial()
            await asyncio.sleep(0.001)
        if not starting.done():
            starting.cancel()
            pytest.fail("it waits for initial parameters that were taken before")
        starting.result()
        return fragments

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(life(DyingDonors(peer)))
    assert peer.link.try_post_initial()  # all of them posted, and taken
    swarm = LaterState(peer.fragments[1].state.num_values, 9, ())
    fragments = asyncio.run(life(swarm))
    assert fragments[1].state.version == 9
    assert np.array_equal(fragments[1].state.anchor, swarm.snapshot.anchor)
    assert (peer.mailbox.network.restored_moment > 0) == has_checkpoint
    if not has_checkpoint:
        assert np.array_equal(fragments[0].state.anchor, initial[0])


def test_the_first_checkpoints_of_a_session_come_soon() -> None:
    assert list(islice(pauses(600.0), 6)) == [60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    assert list(islice(pauses(1.5), 2)) == [1.5, 1.5]
