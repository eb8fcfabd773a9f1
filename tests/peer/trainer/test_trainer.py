"""The built-in inner loop and the hook that any other loop may use."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from dht.ground.errors import DeviceFault, LocalFault, UsageFault
from peer.data_division.block_order import BlockOrder
from peer.trainer.data.context_blocks import GroupedStream
from peer.trainer.data.corpus import Corpus, open_corpus
from peer.trainer.devices.device_choice import select_device
from peer.trainer.loop.inner_step import learning_rate_at
from peer.trainer.loop.local_training import LocalTraining
from peer.trainer.loop.trainer import MAX_SKIPPED_IN_A_ROW, Trainer
from peer.trainer.model.gpt import parameters_digest
from tests.kit.trainer.tiny_gpt import CONTEXT, Settings, model_of
from tests.kit.trainer.trainer_link import link_of as link_in_fragments

link_of = partial(link_in_fragments, num_fragments=2, by="layers", clock=lambda: 0.0)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"{n} bottles on the wall, take one down, {n - 1} left. " for n in range(3000)))
    return open_corpus(f"text:{path}", vocab_size=256, context=CONTEXT, held_out_fraction=0.1)


def trainer_of(corpus, model=None, settings=None, **options) -> Trainer:
    model = model or model_of()
    return Trainer(model, corpus, settings or Settings(), link_of(model), seed=1, peer_id="peer-a", **options)


def test_one_peer_without_network_is_a_plain_loop_bit_for_bit(corpus):
    linked, plain = model_of(), model_of()
    trainer_of(corpus, linked).run(max_steps=12)
    matrices = [parameter for parameter in plain.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in plain.parameters() if parameter.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        3e-3,
        betas=(0.9, 0.95),
        fused=True,
    )
    order = BlockOrder(1, "peer-a")
    for step in range(12):
        positions = order.next(4, CONTEXT, corpus.training)
        optimizer.zero_grad()
        plain.loss(*corpus.training.batch(positions, CONTEXT)).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 5)
        optimizer.step()
    assert parameters_digest(linked) == parameters_digest(plain)


def test_a_trainer_that_is_stopped_while_no_data_has_come_ends_in_peace(corpus):
    model, asked = model_of(), []
    nothing = replace(corpus, training=GroupedStream(1, 256, lambda group: None, 0))
    link = link_of(model, pause=lambda seconds: None)

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 5

    Trainer(model, nothing, Settings(), link, seed=1, peer_id="a").run(stop)
    assert len(asked) == 6
    assert link.inner_steps == 0


def test_the_anchor_is_a_block_after_which_the_same_bits_are_back(corpus):
    model = model_of()
    model.register_buffer("seen", torch.zeros(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    link = link_of(model)
    for index, state in enumerate(link.mailbox.states):
        with state.changing():
            state.anchor.fill(index + 1.0)
            state.version = 5 + index
    before = parameters_digest(model)
    with LocalTraining(model, optimizer, link, seed=1, peer_id="a") as training:
        with training.anchor() as version:
            assert version == 11
            assert {float(value) for parameter in model.parameters() for value in parameter.detach().flatten()} == {
                1,
                2,
            }
            model.seen.fill_(3)
        assert parameters_digest(model) == before
        assert model.seen == 0
        with pytest.raises(ZeroDivisionError), training.anchor():
            raise ZeroDivisionError
        assert parameters_digest(model) == before
        with training.anchor(), pytest.raises(UsageFault, match="inside anchor"), training.anchor():
            pass
        with pytest.raises(UsageFault, match="inside anchor"):
            training.evaluate(lambda: training.anchor().__enter__())
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        with pytest.raises(UsageFault, match="stepped inside anchor"), training.anchor():
            optimizer.step()
        assert parameters_digest(model) == before
        assert link.inner_steps == 0
        link.mailbox.states[1].writing = 1
        with pytest.raises(LocalFault, match="could be read for 30 s"), training.anchor():
            pytest.fail("a torn anchor")
        assert parameters_digest(model) == before


def test_training_lowers_the_loss_and_counts(corpus):
    trainer = trainer_of(corpus)
    before = trainer.measure()
    with trainer.training:
        losses = [trainer.step() for _ in range(30)]
    counters = trainer.link.mailbox.trainer
    assert trainer.measure() < 0.9 * before
    assert (counters.inner_steps, counters.tokens, counters.finished) == (30, 30 * 4 * CONTEXT, 1)
    assert counters.train_loss == pytest.approx(losses[-1], rel=0.3)


def test_a_paused_loop_takes_no_step_sends_what_it_has_and_goes_on(corpus):
    """The owner's pause: no clock and no sleep here; each rest is one look at what the network side wants."""
    looks, seconds = [], map(float, itertools.count())

    def paused():
        return 3 <= trainer.link.inner_steps < 4 and len(looks) < 5

    def pause(seconds):
        assert trainer.link.mailbox.trainer.resting == 1 or seconds < 0.01
        looks.append((trainer.link.inner_steps, trainer.link.mailbox.trainer.tokens_per_second))

    model = model_of()
    trainer = Trainer(
        model, corpus, Settings(), link_of(model, pause=pause, clock=lambda: next(seconds)), seed=1, peer_id="p"
    )
    trainer.run(max_steps=6, is_resting=paused)
    assert trainer.link.inner_steps == 6
    assert trainer.link.mailbox.trainer.resting == 0
    rests = [look for look in looks if look[1] == 0.0]
    assert {steps for steps, _ in rests} >= {3}


def test_the_runs_schedule_multiplies_the_own_warm_up_and_weight_decay_follows(corpus):
    assert [learning_rate_at(step, Settings(learning_rate=1.0), 0.5) for step in (0, 4, 99)] == [0.1, 0.5, 0.5]
    trainer = trainer_of(corpus)
    assert trainer.link.learning_rate_factor == 1.0
    trainer.link.mailbox.network.learning_rate_factor = 0.25
    with trainer.training:
        for _ in range(6):
            trainer.step()
    assert trainer.link.mailbox.trainer.learning_rate == 3e-3 * 0.25
    weight = trainer.training.module.embedding.weight
    for parameter in trainer.training.module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    state = trainer._inner.optimizer.state[weight]
    state["exp_avg"].zero_()
    before = weight.detach().clone()
    trainer._inner.update(99, 0.25)
    torch.testing.assert_close(weight.detach(), before * (1 - 3e-3 * 0.25 * 0.1))


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing_and_the_next_goes_on(corpus, monkeypatch, where):
    model = model_of()
    trainer = trainer_of(corpus, model)
    reads = []
    batch = corpus.training.batch

    def spy(positions, context):
        reads.append(positions.tolist())
        return batch(positions, context)

    monkeypatch.setattr(corpus.training, "batch", spy)
    factor = {"loss": math.inf, "gradient": 3e37}  # the latter: a finite loss whose gradient's norm overflows
    with trainer.training:
        trainer.step()
        before = parameters_digest(model)
        with monkeypatch.context() as spoilt:
            healthy = model.loss
            spoilt.setattr(model, "loss", lambda *tokens: healthy(*tokens) * factor[where])
            assert math.isinf(trainer.step()) == (where == "loss")
        assert parameters_digest(model) == before
        counters = trainer.link.mailbox.trainer
        assert (counters.inner_steps, counters.tokens) == (1, 4 * CONTEXT)
        assert trainer.link.mailbox.outbox.take() == []
        assert math.isfinite(trainer.step())
        assert parameters_digest(model) != before
        assert (counters.inner_steps, counters.tokens) == (2, 8 * CONTEXT)
    assert len({tuple(positions) for positions in reads}) == 3


def test_a_trainer_that_only_skips_gives_up_with_a_sentence(corpus, monkeypatch):
    trainer = trainer_of(corpus)
    model: Any = trainer.training.module
    monkeypatch.setattr(model, "loss", lambda *tokens: model(tokens[0]).sum() * math.nan)
    with pytest.raises(LocalFault, match=f"{MAX_SKIPPED_IN_A_ROW} inner steps in a row had loss nan"):
        trainer.run()
    assert trainer.link.mailbox.trainer.finished == 1


def test_the_anchor_is_measured_now_and_then_and_before_a_peer_leaves(corpus):
    model = model_of()
    trainer = trainer_of(corpus, model, evaluate_every_steps=5)
    mailbox, steps = trainer.link.mailbox, []
    evaluate = trainer.link.evaluate_on_anchor

    def noted(measure):
        assert not model.training
        steps.append(trainer.link.inner_steps)
        return evaluate(measure)

    def stop():
        if trainer.link.inner_steps == 12:
            mailbox.states[0].version = 7
        return mailbox.states[0].version == 7

    trainer.link.evaluate_on_anchor = noted
    trainer.run(stop)
    assert model.training
    assert steps == [0, 5, 10, 12]
    assert mailbox.trainer.evaluation.loss == pytest.approx(math.log(256))  # all-zero anchors know nothing
    assert mailbox.trainer.evaluation.version == sum(state.version for state in mailbox.states) >= 7
    assert mailbox.trainer.finished == 1


def test_run_stops_when_asked_by_either_side(corpus):
    trainer = trainer_of(corpus)
    left = iter([False] * 6 + [True] * 9)
    trainer.run(stop=lambda: next(left))
    assert 1 < trainer.link.inner_steps < 7
    trainer = trainer_of(corpus)
    trainer.link.mailbox.network.stop = 1
    trainer.run(max_steps=3)
    assert trainer.link.inner_steps == 0


def test_any_module_and_any_optimizer_train_through_the_hook(corpus):
    """The loop of the module's docstring, with a bigram model that knows nothing of this software."""
    model = torch.nn.Sequential(torch.nn.Embedding(256, 8), torch.nn.Linear(8, 256))
    link = link_of(model)
    optimizer = torch.optim.RMSprop(model.parameters(), 0.01)
    received = []
    with LocalTraining(model, optimizer, link, seed=1, peer_id="peer-a") as training:
        for positions in training.positions(4, CONTEXT, corpus.training.num_tokens, max_steps=40):
            inputs, targets = corpus.training.batch(positions, CONTEXT)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            training.report(loss.item())
            optimizer.step()
            for message in link.mailbox.outbox.take():
                received.append((message.fragment, message.num_tokens))
                link.mailbox.outbox.release(message.slot)
    assert received[:3] == [(0, 2 * 4 * CONTEXT), (1, 4 * 4 * CONTEXT), (0, 4 * 4 * CONTEXT)]
    assert len(received) == 20
    assert link.mailbox.trainer.train_loss < 5
    steps = link.inner_steps
    optimizer.step()
    assert link.inner_steps == steps  # the hook is gone with the context


def test_a_loop_with_its_own_order_of_data_says_how_many_tokens_it_read(corpus):
    model = torch.nn.Sequential(torch.nn.Embedding(256, 8), torch.nn.Linear(8, 256))
    link = link_of(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.arange(8)).sum().backward()
        optimizer.step()

    with LocalTraining(model, optimizer, link, seed=1, peer_id="peer-a") as training:
        training.report(tokens=300)
        training.report(2.5, tokens=212)  # two micro-batches of one step
        step()
        assert link.mailbox.trainer.tokens == 512
        assert link.mailbox.trainer.train_loss == 2.5
        step()  # without a word it counts one, so that its work weighs something
        assert link.mailbox.trainer.tokens == 513
        next(training.positions(4, CONTEXT, corpus.training.num_tokens))
        training.report(tokens=10)  # the rest was padding
        step()
        assert link.mailbox.trainer.tokens == 523
        training.report(tokens=7)
        training.skip_step()
        step()
        assert link.mailbox.trainer.tokens == 524
        for count in (np.int64(3), torch.tensor(3)):  # as libraries count
            training.report(torch.tensor(2.5, requires_grad=True) * 1, tokens=count)
        step()
        assert link.mailbox.trainer.tokens == 530
        for wrong in (0, -1, 1.5, True, torch.ones(3)):
            with pytest.raises(UsageFault, match="expected a whole number from 1"):
                training.report(tokens=wrong)


def test_leaving_sends_the_last_work(corpus):
    trainer = trainer_of(corpus)
    trainer.run(max_steps=3)  # fragment 0 was due at step 2, fragment 1 never
    held = [(message.fragment, message.num_steps) for message in trainer.link.mailbox.outbox.take()]
    assert held == [(0, 2), (0, 1)]


def test_a_module_without_a_loss_is_told_what_to_do(corpus):
    model = torch.nn.Linear(3, 3)
    with pytest.raises(LocalFault, match=r"Linear lacks loss.*LocalTraining"):
        Trainer(model, corpus, Settings(), link_of(model), seed=1, peer_id="a")


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "cuda:-1", "", "cpu:1"])
def test_a_device_that_is_not_there_is_named_with_what_is(name):
    with pytest.raises(DeviceFault, match=r"is not available; .*cpu"):
        select_device(name)
