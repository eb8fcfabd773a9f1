"""The network side's half of the mailbox against the trainer's: what the live parameters show is never wrong."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from averaging.codec.codec import make_codec
from averaging.outer.fragment_layout import build_layout
from averaging.outer.outer_settings import OuterRule
from dht.ground.host import PeerId
from peer.config.manifest import AveragingSection
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.slots import NUM_SLOTS
from peer.network.node.fragment_memory import build_fragments
from peer.network.node.trainer_desk import TrainerDesk
from peer.trainer.loop.mailbox_link import TrainerLink
from tests.kit.clock import Clock
from tests.kit.notaries import notary_of
from tests.kit.trainer.trainer_link import module_of, move, unsent_work

ME = PeerId("12D3KooWMe")
NUM_FRAGMENTS = 4


def change_of(num_values, seed):
    """Multiples of 1/1024, float32 [num_values]."""
    return (np.random.default_rng(seed).integers(-64, 65, num_values) / 1024).astype(np.float32)


class Pair:
    """A trainer and its network side over one mailbox. All numbers are multiples of 1/1024: sums are exact."""

    def __init__(self, sync_every=4, mode="carry"):
        self.module = module_of()
        shapes = [(name, tuple(parameter.shape)) for name, parameter in self.module.named_parameters()]
        self.layout = build_layout(shapes, NUM_FRAGMENTS, "balanced")
        self.mailbox = Mailbox.in_process(self.layout.sizes)
        options = {"sync_every": sync_every, "clock": Clock(1000.0), "pause": None}
        self.link = TrainerLink(self.module.named_parameters(), self.layout, self.mailbox, **options)
        section = AveragingSection(mode=mode, sync_every=sync_every, num_fragments=NUM_FRAGMENTS)
        rule = OuterRule(mode, 0.7, 0.5)
        codec = make_codec("int4", 16)
        self.fragments = build_fragments(ME, "run", section, rule, codec, self.mailbox, notary_of(ME))
        for index, fragment in enumerate(self.fragments):
            fragment.state.anchor[:] = self.live(index)
            fragment.state.refresh_digest()
        self.desk = TrainerDesk(self.mailbox, self.fragments, section, self.take, self.compute, 0.001)
        self.desk.is_open = True
        self.changing = []

    def live(self, index):
        return np.concatenate(
            [
                dict(self.module.named_parameters())[piece.name]
                .detach()
                .flatten()[piece.start : piece.start + piece.length]
                for piece in self.layout.fragments[index].pieces
            ]
        )

    async def take(self, index, fill):
        # Another task may run before the work is in, as when the fragment is busy.
        await asyncio.sleep(0)
        fill(self.fragments[index].state)

    def advance(self, index, seed):
        """A commit without own work moves the anchor."""
        state = self.fragments[index].state
        values = change_of(state.anchor.size, seed)
        with self.desk.lend(index) as change:
            np.copyto(change[0 : len(values)], values)
            state.anchor += values
            state.version += 1
            self.desk.deliver(index, change, state.version)

    async def compute(self, work):
        # Another task may run before the result is there, as with a thread.
        await asyncio.sleep(0)
        return work()

    async def begin(self, index, seed):
        """A commit is being applied, and the change written to where the desk says."""
        fragment = self.fragments[index]
        if not fragment.busy.locked():
            await fragment.busy.acquire()
            lent = self.desk.lend(index)
            self.changing.append((index, seed, lent, lent.__enter__()))

    def end(self, is_applied=True):
        """The oldest of those is done, or has failed."""
        if not self.changing:
            return
        index, seed, lent, change = self.changing.pop(0)
        state = self.fragments[index].state
        if is_applied:
            values = change_of(state.anchor.size, seed)
            for start, end in ((0, 3), (3, len(values))):
                np.copyto(change[start:end], values[start:end])
            state.anchor += values
            state.version += 1
            self.desk.deliver(index, change, state.version)
        lent.__exit__(None, None, None)
        self.fragments[index].busy.release()

    def step(self, seed):
        move(self.module, seed)
        self.link.after_inner_step(10)

    async def look(self):
        await self.desk.take_work()
        await self.desk.retry()

    async def drain(self):
        for _ in range(2 * NUM_FRAGMENTS + 2):
            self.link.poll()
            await self.look()
        self.link.poll()

    def check(self):
        assert not self.desk.undelivered
        for index, fragment in enumerate(self.fragments):
            assert np.array_equal(self.live(index), fragment.state.shown() - unsent_work(self.link, index).numpy())
            assert self.mailbox.states[index].applied_version == fragment.state.version


@settings(max_examples=60)
@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["step", "look", "advance", "begin", "begin", "end", "end", "fail", "both"]),
            st.integers(0, 99),
        ),
        max_size=60,
    ),
    sync_every=st.integers(1, 6),
)
@example(actions=[("step", 1), *[("advance", seed) for seed in range(20)], ("both", 2), ("step", 3)], sync_every=1)
@example(actions=[*[("advance", seed) for seed in (0, 1, 4)], ("step", 1), ("both", 2), ("step", 3)], sync_every=1)
def test_live_parameters_show_the_state_less_unsent_work(actions, sync_every):
    async def scene():
        pair = Pair(sync_every)
        for action, seed in actions:
            if action == "step":
                pair.step(seed)
            elif action == "look":
                await pair.look()
            elif action == "begin":
                await pair.begin(seed % NUM_FRAGMENTS, seed)
            elif action in ("end", "fail"):
                pair.end(action == "end")
            elif pair.fragments[seed % NUM_FRAGMENTS].busy.locked():
                pass
            elif action == "advance":
                pair.advance(seed % NUM_FRAGMENTS, seed)
            else:
                # A commit comes while work is being taken in.
                looking = asyncio.ensure_future(pair.look())
                await asyncio.sleep(0)
                if not pair.fragments[seed % NUM_FRAGMENTS].busy.locked():
                    pair.advance(seed % NUM_FRAGMENTS, seed)
                await pair.desk.retry()
                await looking
        while pair.changing:
            pair.end()
        await pair.drain()
        assert pair.mailbox.inbox.num_free() == NUM_SLOTS
        pair.check()

    asyncio.run(scene())


@pytest.mark.parametrize("keeps_work", [(), range(NUM_FRAGMENTS)])
def test_a_commit_while_other_fragments_wait_for_their_start_reaches_the_trainer(keeps_work):
    """The trainer's inbox has fewer slots than there are fragments, and rounds do not wait for it."""

    async def scene():
        pair = Pair()
        pair.desk.is_open = False
        opening = asyncio.ensure_future(pair.desk.open(keeps_work=keeps_work))
        for _ in range(20):
            await asyncio.sleep(0)
        assert pair.mailbox.inbox.num_free() == 0
        assert not opening.done()
        for index in (0, 1, NUM_FRAGMENTS - 1):
            async with pair.fragments[index].busy:
                pair.advance(index, index)
        while not opening.done():
            pair.link.poll()
            await asyncio.sleep(0)
        await opening
        await pair.drain()
        pair.check()

    asyncio.run(scene())


def test_a_busy_fragment_holds_up_its_own_work_alone() -> None:
    """A checkpoint copies a fragment under its lock: the other fragments' work is taken, its own later and in order."""

    async def play() -> None:
        pair = Pair(sync_every=1)
        await pair.fragments[0].busy.acquire()
        for seed in range(3):
            pair.step(seed)
            for _ in range(NUM_FRAGMENTS):
                async with asyncio.timeout(1.0):
                    await pair.look()
                pair.link.poll()
                pair.link.flush()
        waiting = [message.fragment for message in pair.mailbox.outbox.take()]
        assert set(waiting) == {0}
        assert pair.mailbox.states[0].absorbed_sequence == 0
        taken = [pair.mailbox.states[index].absorbed_sequence for index in range(1, NUM_FRAGMENTS)]
        assert min(taken) > 0
        pair.fragments[0].busy.release()
        await pair.drain()
        pair.link.flush()
        await pair.drain()
        pair.check()

    asyncio.run(play())


def test_whole_fragments_are_filled_in_the_compute_port() -> None:
    """The event loop, which answers other members, neither computes nor copies a fragment."""

    async def play() -> None:
        pair, filled = Pair(), []

        async def compute(work):  # type: ignore[no-untyped-def]
            filled.append(True)
            try:
                return work()
            finally:
                filled.append(False)

        for fragment in pair.fragments:
            shown = fragment.state.shown
            fragment.state.shown = lambda out=None, shown=shown: (
                (  # type: ignore[method-assign, misc]
                    filled.append("shown") if filled and filled[-1] is True else pytest.fail("on the event loop")
                )
                or shown(out)
            )
        pair.desk.compute = compute  # type: ignore[assignment]
        pair.desk.is_open = False
        opening = asyncio.create_task(pair.desk.open(keeps_work=()))
        while not opening.done():
            await asyncio.sleep(0)
            pair.link.poll()
        pair.desk.undelivered = dict.fromkeys(range(NUM_FRAGMENTS))
        while pair.desk.undelivered:
            await pair.desk.retry()
            pair.link.poll()
            await pair.desk.take_work()
        assert filled.count("shown") == 2 * NUM_FRAGMENTS

    asyncio.run(play())
