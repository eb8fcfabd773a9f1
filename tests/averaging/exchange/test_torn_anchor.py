"""A change of the anchor that fails half-way, at any point, is never gone on from: another anchor takes its place."""

from __future__ import annotations

from contextlib import ExitStack
from unittest import mock

import pytest

from averaging.outer import fragment_anchor_and_residual, outer_step
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_step import RunningDigest, anchor_digest
from averaging.rounds.round_facts import RepairNeeded
from averaging.signing.commit_log import CommitLog
from averaging.wire.messages import DIGEST_BYTES
from tests.kit.rounds.exchange_swarm import Swarm, scenario


class Broken:
    """Raises once in `name` of `owner`, at the given call of it, while one peer computes."""

    def __init__(self, peer, owner, name, call):
        self.peer, self.owner, self.name, self.left = peer, owner, name, call
        self.is_here = False

    def __enter__(self):
        plain, compute = getattr(self.owner, self.name), self.peer.compute

        def once(*args, **kwargs):
            is_here = self.is_here or (bool(args) and args[0] is self.peer.fragments[0].log)
            self.left -= is_here
            if is_here and self.left == 0:
                raise MemoryError("injected")
            return plain(*args, **kwargs)

        async def work_here(work):
            def run():
                self.is_here = True
                try:
                    return work()
                finally:
                    self.is_here = False

            return await compute(run)

        self.peer.compute = work_here
        self._patch = mock.patch.object(self.owner, self.name, once)
        self._patch.__enter__()
        return self

    def __exit__(self, *fault):
        self._patch.__exit__(*fault)


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (fragment_anchor_and_residual, "outer_step_into", 1),
        (fragment_anchor_and_residual, "outer_step_into", 2),
        (FragmentState, "_take_from_overlay", 2),
        (RunningDigest, "result", 1),
        (outer_step, "digest_of_chunks", 1),
        (CommitLog, "note_anchor", 1),
    ],
)
def test_a_commit_that_fails_half_way_is_not_tried_again(owner, name, call):
    async def play():
        swarm = Swarm(3, sizes=(20_000,))
        await swarm.train(2)
        await swarm.settle()
        peer = swarm.live()[1]
        fragment = peer.fragments[0]
        with Broken(peer, owner, name, call) as broken:
            await swarm.train(1, first_seed=100)
            await swarm.settle()
        assert broken.left <= 0, "it did not fail"
        await swarm.train(2, first_seed=200)
        await swarm.settle()
        swarm.assert_agreement(least_version=4)
        swarm.assert_shown()
        assert fragment.machine.anchor_digest == fragment.state.digest[:DIGEST_BYTES]
        assert not fragment.is_torn
        needed = [report for report in peer.reports if isinstance(report, RepairNeeded)]
        assert bool(needed) == (name != "note_anchor")
        return swarm

    scenario(play)


@pytest.mark.parametrize(("owner", "name"), [(FragmentState, "adopt"), (FragmentState, "settle_in_new_lineage")])
@pytest.mark.parametrize("is_after", [False, True])
def test_an_anchor_that_is_taken_over_half_way_is_replaced(owner, name, is_after):
    async def play():
        swarm = Swarm(3, sizes=(20_000,))
        await swarm.train(2)
        await swarm.settle()
        peer, donor = swarm.live()[1], swarm.live()[0].fragments[0]
        fragment = peer.fragments[0]
        there = donor.state
        values = there.anchor.copy(), there.momentum.copy(), there.version + 1, there.lineage_tokens + 1, bytes(32)
        commits = [donor.machine.log.newest[version] for version in sorted(donor.machine.log.newest)]
        plain = getattr(owner, name)

        def fail(self, *args, **told):
            if is_after:
                plain(self, *args, **told)
            raise MemoryError("injected")

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(owner, name, fail))
            stack.enter_context(pytest.raises(MemoryError))
            await peer.exchange.applying.adopt(fragment, lambda state: state.adopt(*values), commits)
        assert fragment.is_torn
        assert fragment.state.digest == bytes(32)
        await peer.work(0, 50)
        assert fragment.state.pending is None, "it offers work on a torn anchor"
        here = there.anchor.copy(), there.momentum.copy(), there.version, there.lineage_tokens, there.digest
        await peer.exchange.applying.adopt(fragment, lambda state: state.adopt(*here), commits)
        assert not fragment.is_torn
        await swarm.train(2, first_seed=200)
        await swarm.settle()
        swarm.assert_agreement(least_version=4)
        swarm.assert_shown()
        return swarm

    scenario(play)


def test_an_anchor_that_could_not_be_shown_is_there_and_shown_anew():
    async def play():
        swarm = Swarm(3, sizes=(20_000,))
        await swarm.train(2)
        await swarm.settle()
        peer, donor = swarm.live()[1], swarm.live()[0].fragments[0]
        fragment = peer.fragments[0]
        there = donor.state
        values = there.anchor + 1, there.momentum.copy(), there.version, there.lineage_tokens + 1
        told = anchor_digest(values[0], values[1])
        shown = FragmentState.shown

        def fail(self, out=None):
            if self is fragment.state and out is None:
                patch.stop()
                raise MemoryError("injected")
            return shown(self, out)

        patch = mock.patch.object(FragmentState, "shown", fail)
        patch.start()
        with pytest.raises(MemoryError):
            await peer.exchange.applying.adopt(fragment, lambda state: state.adopt(*values, told), [])
        assert fragment.machine.anchor_digest == told[:DIGEST_BYTES]
        swarm.assert_shown()
        return swarm

    scenario(play)
