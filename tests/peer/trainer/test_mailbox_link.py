"""The trainer's half of the mailbox: nothing lost, nothing counted twice, nothing waits unless told to."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from averaging.arrays import F32
from dht.ground.errors import LocalFault, UsageFault
from dht.records.evaluation import Evaluation
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.slots import MergeKind, WorkKind
from peer.trainer.loop.local_training import LocalTraining
from peer.trainer.loop.mailbox_link import TrainerLink
from tests.kit.clock import Clock
from tests.kit.trainer.trainer_link import flat, fragments_joined, link_of, module_of, move, unsent_work

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["step", "step", "step", "take", "add", "rebase", "flush"]), st.integers(0, 99)),
    max_size=60,
)


@settings(max_examples=60)
@given(actions=ACTIONS, sync_every=st.integers(1, 6), num_fragments=st.integers(1, 5))
def test_start_minus_end_is_what_was_sent_plus_what_is_unsent(actions, sync_every, num_fragments):
    """Exactly, whatever the network does: full slots, late readers, merges at any time."""
    module = module_of()
    link = link_of(module, num_fragments, sync_every=sync_every)
    start, sizes = flat(module), link.mailbox.sizes
    sent = [torch.zeros(size) for size in sizes]
    merged = [torch.zeros(size) for size in sizes]
    steps, tokens = [0] * num_fragments, [0] * num_fragments
    num_steps = 0

    def read_all():
        for message in link.mailbox.outbox.take():
            sent[message.fragment] += torch.from_numpy(message.values)
            steps[message.fragment] += message.num_steps
            tokens[message.fragment] += message.num_tokens
            link.mailbox.outbox.release(message.slot)

    for action, seed in actions:
        fragment = seed % num_fragments
        if action == "step":
            move(module, seed)
            link.after_inner_step(10)
            num_steps += 1
        elif action == "take":
            read_all()
        elif action == "flush":
            link.flush()
        else:
            work = unsent_work(link, fragment)
            values = torch.randint(-64, 65, (sizes[fragment],), generator=torch.Generator().manual_seed(seed)) / 1024.0
            if action == "add":
                assert link.mailbox.inbox.try_post(MergeKind.ADD, fragment, values.numpy(), version=1)
                merged[fragment] += values
            else:
                assert link.mailbox.inbox.try_post(MergeKind.REBASE, fragment, values.numpy(), version=1)
                all_sent = sent_of(link, sent, fragment)
                shown = torch.split(start, list(sizes))[fragment] - all_sent
                not_absorbed = all_sent - sent[fragment]
                merged[fragment] = values - not_absorbed - shown
            link.poll()
            assert torch.equal(unsent_work(link, fragment), work)
    read_all()
    total = fragments_joined(link, lambda index: sent[index] + unsent_work(link, index) - merged[index])
    assert torch.equal(start - flat(module), total)
    while not link.flush():
        read_all()
    read_all()
    assert steps == [num_steps] * num_fragments
    assert tokens == [10 * num_steps] * num_fragments
    assert not fragments_joined(link, partial(unsent_work, link)).any()


def sent_of(link, sent, fragment):
    """All work of a fragment that has left the trainer, read or not."""
    messages = [message for message in link.mailbox.outbox.take() if message.fragment == fragment]
    return sum((torch.from_numpy(message.values) for message in messages), sent[fragment].clone())


def test_sends_are_staggered_and_say_what_they_hold():
    module = module_of()
    link = link_of(module, num_fragments=2, sync_every=4, start_inner_step=100)
    seen = []
    for step in range(1, 9):
        move(module, step)
        link.after_inner_step(10, loss=2.0)
        for message in link.mailbox.outbox.take():
            seen.append((message.inner_step, message.fragment, message.num_steps, message.num_tokens))
            assert message.kind == WorkKind.WORK
            link.mailbox.outbox.release(message.slot)
    assert seen == [(102, 0, 2, 20), (104, 1, 4, 40), (106, 0, 4, 40), (108, 1, 4, 40)]
    counters = link.mailbox.trainer
    assert (counters.inner_steps, counters.tokens, counters.train_loss) == (108, 80, 2.0)


def test_a_put_off_send_happens_as_soon_as_a_slot_is_free():
    module = module_of()
    link = link_of(module, num_fragments=1, sync_every=2)
    for step in range(7):
        move(module, step)
        link.after_inner_step(1)
    first, second = link.mailbox.outbox.take()
    assert (first.num_steps, second.num_steps) == (2, 2)
    link.mailbox.outbox.release(first.slot)
    move(module, 7)
    link.after_inner_step(1)
    assert [(m.inner_step, m.num_steps) for m in link.mailbox.outbox.take()] == [(4, 2), (8, 4)]
    link.mailbox.outbox.release(second.slot)
    move(module, 8)
    link.after_inner_step(1)
    assert len(link.mailbox.outbox.take()) == 1  # nothing was due at step 9: the late send settled step 8 too


def test_base_version_is_the_one_under_which_the_work_began():
    module = module_of()
    link = link_of(module, num_fragments=1, sync_every=2)
    values = np.zeros(link.mailbox.sizes[0], dtype=np.float32)
    bases = []
    for step in range(1, 9):
        if step == 4:  # arrives in the middle of a block: this block still began on version 0
            link.mailbox.inbox.try_post(MergeKind.ADD, 0, values, version=5)
        move(module, step)
        link.after_inner_step(1)
        for message in link.mailbox.outbox.take():
            bases.append(message.base_version)
            link.mailbox.outbox.release(message.slot)
    assert bases == [0, 0, 5, 5]
    assert link.mailbox.states[0].applied_version == 5


def test_blend_and_set_follow_their_formulas():
    module = module_of()
    link = link_of(module, num_fragments=1, sync_every=100)
    move(module, 1)
    link.after_inner_step(10)
    before, anchor = flat(module), torch.arange(26.0)
    link.mailbox.inbox.try_post(MergeKind.BLEND, 0, anchor.numpy(), version=3)
    link.poll()
    assert torch.equal(flat(module), before * 0.5 + anchor * 0.5)
    assert torch.equal(unsent_work(link, 0), anchor - flat(module))
    link.mailbox.inbox.try_post(MergeKind.SET, 0, (anchor * 2).numpy(), version=4)
    link.poll()
    assert torch.equal(flat(module), anchor * 2)
    assert not unsent_work(link, 0).any()
    assert link.flush()
    assert link.mailbox.outbox.take() == []  # discarded work is not sent


def test_the_start_posts_everything_and_takes_the_anchors():
    module = module_of()
    clock = Clock(1000.0)
    link = link_of(module, num_fragments=5, clock=clock, pause=clock.pause)
    initial: dict[int, F32] = {}
    delivered: set[int] = set()

    def network():
        for message in link.mailbox.outbox.take():
            assert message.kind == WorkKind.INITIAL
            initial[message.fragment] = message.values.copy()
            link.mailbox.outbox.release(message.slot)
        for fragment in initial.keys() - delivered:
            if link.mailbox.inbox.try_post(MergeKind.SET, fragment, initial[fragment] + 1, version=7):
                delivered.add(fragment)

    clock.on_pause = network
    start = flat(module)
    assert link.post_initial(10.0)
    assert link.wait_ready(10.0)
    assert np.array_equal(np.concatenate([initial[index] for index in range(5)]), start)
    assert torch.equal(flat(module), start + 1)
    assert link.mailbox.trainer.wait_seconds > 0


def test_a_network_side_that_never_comes_is_named_and_a_stop_is_obeyed():
    clock = Clock(1000.0)
    link = link_of(module_of(), num_fragments=5, clock=clock, pause=clock.pause)
    with pytest.raises(LocalFault, match="waited 2 s for the network process"):
        link.post_initial(2.0)
    with pytest.raises(LocalFault, match="deliver the anchors"):
        link.wait_ready(2.0)
    assert not link.wait_ready(2.0, stop=lambda: True)
    link.mailbox.network.stop = 1
    assert not link.wait_ready(2.0)


def test_sync_waits_for_the_next_version_and_accounts_for_it():
    module = module_of()
    clock = Clock(1000.0)
    link = link_of(module, num_fragments=1, sync_every=2, mode="sync", clock=clock, pause=clock.pause)
    looks = []

    def network():
        looks.append(clock.now)
        if len(looks) == 500:
            for message in link.mailbox.outbox.take():
                link.mailbox.outbox.release(message.slot)
            anchor = np.full(26, 2.0, dtype=np.float32)
            link.mailbox.inbox.try_post(MergeKind.SET, 0, anchor, version=1)

    clock.on_pause = network
    for step in range(2):
        assert not looks
        move(module, step)
        link.after_inner_step(1)
    assert len(looks) == 500
    assert (flat(module) == 2).all()
    assert link.mailbox.trainer.wait_seconds == pytest.approx(0.5)
    assert not link.is_blocked


@pytest.mark.parametrize("has_ended", [False, True])
def test_sync_ends_waiting_when_the_owner_stops_or_the_network_process_has_ended(has_ended):
    clock = Clock(1000.0)
    module = module_of()
    link = link_of(module, num_fragments=1, sync_every=1, mode="sync", clock=clock, pause=clock.pause)
    looks = []

    def look():
        looks.append(1)
        assert len(looks) < 1000, "still waits"

    def stop():
        if has_ended and len(looks) >= 5:
            raise LocalFault("the network process ended again and again")
        return len(looks) >= 5

    clock.on_pause = look
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    with LocalTraining(module, optimizer, link, seed=1, peer_id="me", stop=stop):
        module(torch.ones(1, 3)).sum().backward()
        with pytest.raises(LocalFault, match="again and again") if has_ended else nullcontext():
            optimizer.step()
        looks.clear() if has_ended else None
    assert link.inner_steps == 1


def test_sync_without_pause_leaves_the_waiting_to_the_caller():
    clock = Clock(1000.0)
    module = module_of()
    link = link_of(module, num_fragments=1, sync_every=1, mode="sync", clock=clock)
    move(module, 0)
    link.after_inner_step(1)
    assert link.is_blocked
    clock.now += 3
    link.mailbox.inbox.try_post(MergeKind.ADD, 0, np.zeros(26, dtype=np.float32), version=0)
    link.poll()
    assert link.is_blocked  # the same version is no answer
    link.mailbox.inbox.try_post(MergeKind.SET, 0, np.zeros(26, dtype=np.float32), version=1)
    link.poll()
    assert not link.is_blocked
    assert link.mailbox.trainer.wait_seconds == 3


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ("x", "evaluate got 'x'; expected a function"),
        (1.5, "evaluate got 1.5; expected a function"),
        (lambda: None, "returned None; expected one number"),
        (lambda: "low", "returned 'low'; expected one number"),
    ],
)
def test_what_measures_no_loss_is_refused_and_changes_nothing(evaluate, message):
    module = module_of()
    link = link_of(module)
    before = flat(module)
    with pytest.raises(UsageFault, match=message):
        link.evaluate_on_anchor(evaluate)
    assert flat(module).tolist() == before.tolist()
    assert link.mailbox.trainer.evaluation is None


def test_speed_leaves_out_waiting_and_evaluation():
    clock = Clock(1000.0)
    link = link_of(module_of(), clock=clock)
    for step in range(50):
        clock.now += 0.5
        link.after_inner_step(100)
        if step % 10 == 0:
            link.evaluate_on_anchor(lambda: setattr(clock, "now", clock.now + 60) or 1.0)
    assert link.mailbox.trainer.tokens_per_second == pytest.approx(200)


def test_evaluation_sees_the_anchor_and_gives_back_the_same_bits():
    module = module_of()
    link = link_of(module)
    for index, state in enumerate(link.mailbox.states):
        with state.changing():
            state.anchor.fill(index + 1.0)
            state.version = 10 + index
    with torch.no_grad():
        module[0].bias[0] = -0.0
    before = flat(module)
    seen = []
    assert link.evaluate_on_anchor(lambda: seen.append(flat(module)) or 1.25) == Evaluation(1.25, 33)
    assert seen[0].tolist() == torch.cat([torch.full((n,), i + 1.0) for i, n in enumerate(link.mailbox.sizes)]).tolist()
    assert flat(module).numpy().tobytes() == before.numpy().tobytes()
    assert link.mailbox.trainer.evaluation == Evaluation(1.25, 33)

    def fail():
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError):
        link.evaluate_on_anchor(fail)
    assert flat(module).numpy().tobytes() == before.numpy().tobytes()


def test_a_torn_anchor_is_not_evaluated():
    clock = Clock(1000.0)
    module = module_of()
    link = link_of(module, clock=clock, pause=clock.pause)
    before = flat(module)
    link.mailbox.states[1].writing = 1
    assert link.evaluate_on_anchor(lambda: pytest.fail("evaluated a torn anchor")) is None
    assert torch.equal(flat(module), before)
    assert link.mailbox.trainer.evaluation is None
    clock.on_pause = lambda: setattr(link.mailbox.states[1], "writing", 0)
    assert link.evaluate_on_anchor(lambda: 2.0) == Evaluation(2.0, 0)


def test_numbers_that_are_not_finite_never_reach_the_outbox():
    module = module_of()
    link = link_of(module, num_fragments=1, sync_every=1)
    with torch.no_grad():
        module[0].weight[0, 0] = math.nan
    with pytest.raises(LocalFault, match=r"fragment 0 \(0\.weight.*NaN or infinite after inner step 1"):
        link.after_inner_step(1)
    assert link.mailbox.outbox.take() == []


def test_a_module_that_does_not_fit_the_layout_is_refused():
    module = module_of()
    link = link_of(module)

    def make(**replaced):
        parameters = {**dict(module.named_parameters()), **replaced}
        TrainerLink(
            {name: value for name, value in parameters.items() if value is not None}.items(),
            link.layout,
            Mailbox.in_process(link.layout.sizes),
            sync_every=1,
        )

    with pytest.raises(LocalFault, match=r"no parameter '1\.bias'"):
        make(**{"1.bias": None})
    with pytest.raises(LocalFault, match=r"'1\.bias' has 3 values; expected 2"):
        make(**{"1.bias": torch.zeros(3)})
    with pytest.raises(LocalFault, match=r"'0\.weight' is not contiguous"):
        make(**{"0.weight": torch.zeros(3, 4).t()})
    make(buffer=torch.zeros(9))  # parameters that the run does not average are left alone
