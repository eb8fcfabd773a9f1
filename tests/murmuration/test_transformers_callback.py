"""`SwarmCallback` in a real `transformers.Trainer`: when it joins, what it tells, how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dht.ground.errors import UsageFault
from tests.kit.late_library import late_library
from tests.kit.trainer.lone_swarm import LoneSwarm, annealing, joining_alone

transformers = late_library("transformers")
integration = late_library("murmuration.integrations.transformers", needs="transformers")

pytestmark = pytest.mark.filterwarnings("ignore")
RUN = "own.aaaaaaaaaaaaaaaaaaaa"
CONTEXT = 16


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LoneSwarm]]:
    with joining_alone(monkeypatch, "murmuration.integrations.callback_session.join") as made:
        yield made


def model_of() -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, bos_token_id=0, **shape))


def trainer_of(folder: Path, callback: Any, model: Any = None, *, more: Any = (), **options: Any) -> Any:
    blocks = torch.arange(64 * CONTEXT).view(64, CONTEXT) % 64
    dataset = [{"input_ids": block, "labels": block} for block in blocks]
    options = {"max_steps": 6, "save_strategy": "no", "logging_steps": 2, **options}
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    return transformers.Trainer(
        eval_dataset=dataset[:4],
        model=model or model_of(),
        args=args,
        train_dataset=dataset,
        callbacks=[callback, *more],
    )


def flat(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_trainer_joins_counts_its_tokens_and_leaves(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    seen: list[Any] = []
    callback = integration.SwarmCallback(RUN, peers=["x"], on_joined=seen.append, name="me")
    trainer = trainer_of(tmp_path, callback, gradient_accumulation_steps=2)
    assert not sessions
    trainer.train()
    (swarm,) = sessions
    assert seen == [swarm]
    assert (swarm.given["peers"], swarm.given["name"]) == (("x",), "me")
    counters = swarm.training.link.mailbox.trainer
    assert (counters.inner_steps, counters.tokens) == (6, 6 * 2 * 4 * CONTEXT)
    assert 0 < counters.train_loss < 6
    assert swarm.left == [None]
    assert callback.swarm is None
    # What is saved now is the swarm's anchor: here the very first one.
    assert torch.equal(flat(trainer.model), flat(model_of()))


def test_the_live_parameters_stay_if_that_is_wanted(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    trainer = trainer_of(tmp_path, integration.SwarmCallback(RUN, ends_with_anchor=False))
    trainer.train()
    assert not torch.equal(flat(trainer.model), flat(model_of()))


def test_each_checkpoint_has_the_anchor_beside_the_live_model(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    trainer = trainer_of(tmp_path, integration.SwarmCallback(RUN), save_strategy="steps", save_steps=6)
    trainer.train()
    anchor = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-6" / "anchor")
    live = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-6")
    assert torch.equal(flat(anchor), flat(model_of()))
    assert not torch.equal(flat(live), flat(model_of()))


def at_step(step: int, do: Callable[[], None]) -> Any:
    """A callback that does something at the end of a step."""

    class At(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == step:
                do()

    return At()


def test_it_stops_when_the_swarm_says_so(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    def end() -> None:
        sessions[0].is_over = True

    trainer = trainer_of(tmp_path, integration.SwarmCallback(RUN), more=[at_step(3, end)])
    trainer.train()
    assert trainer.state.global_step == 4
    assert sessions[0].left == [None]


def test_an_exception_leaves_the_session_at_the_next_training_or_by_hand(
    tmp_path: Path, sessions: list[LoneSwarm]
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    callback = integration.SwarmCallback(RUN)
    trainer = trainer_of(tmp_path, callback, more=[at_step(2, fail)])
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert sessions[0].left == []
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert sessions[0].left == [RuntimeError]
    callback.leave()
    assert sessions[1].left == [RuntimeError]
    callback.leave()
    assert len(sessions[1].left) == 1


def test_a_run_with_a_schedule_decides_the_rate(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    def at_half(swarm: LoneSwarm) -> None:
        swarm.training.link.mailbox.network.learning_rate_factor = 0.5

    callback = integration.SwarmCallback(RUN, on_joined=at_half)
    with annealing():
        trainer = trainer_of(tmp_path, callback, learning_rate=0.01, lr_scheduler_type="constant")
        trainer.train()
    # What it logs is the rate of the step, not that of its own scheduler.
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert logged == pytest.approx([0.01 * 0.5 * share for share in (0.2, 0.4, 0.6)])
    # The last one of six steps: six tenths of the warm-up.
    assert sessions[0].training.link.mailbox.trainer.learning_rate == pytest.approx(0.01 * 0.5 * 0.6)


def test_a_cool_down_bounds_the_trainers_own_rate(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    def at(factor: float) -> float:
        def set_factor(swarm: LoneSwarm) -> None:
            swarm.training.link.mailbox.network.learning_rate_factor = factor

        trainer_of(tmp_path, integration.SwarmCallback(RUN, on_joined=set_factor), learning_rate=0.01).train()
        return sessions[-1].training.link.mailbox.trainer.learning_rate

    # The trainer's linear one is at a sixth in the last of six steps.
    assert [at(1.0), at(0.5), at(0.1)] == pytest.approx([0.01 / 6, 0.01 / 6, 0.01 * 0.1])


def test_the_trainers_schedule_is_its_own_whatever_an_earlier_session_left(
    tmp_path: Path, sessions: list[LoneSwarm], monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = LoneSwarm.__enter__

    def after_an_annealed_session(swarm: LoneSwarm) -> LoneSwarm:
        enter(swarm)
        swarm.training.optimizers[0].param_groups[0]["lr"] = 0.0
        for kept in swarm.given["state"].values():
            kept.load_state_dict({"last_epoch": 100})
        return swarm

    monkeypatch.setattr(LoneSwarm, "__enter__", after_an_annealed_session)
    rates: list[float] = []

    class Watch(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            rates.append(given["optimizer"].param_groups[0]["lr"])

    options = {"learning_rate": 0.6, "save_strategy": "steps", "save_steps": 3}
    trainer_of(tmp_path, integration.SwarmCallback(RUN), more=[Watch()], **options).train()
    assert rates == pytest.approx([0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    again = trainer_of(tmp_path, integration.SwarmCallback(RUN), more=[Watch()], **options)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert rates[6:] == pytest.approx([0.3, 0.2, 0.1])


def test_what_puts_another_model_in_place_is_refused(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    options = {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 2}
    trainer = trainer_of(tmp_path, integration.SwarmCallback(RUN), **options, save_steps=2)  # type: ignore[arg-type]
    with pytest.raises(UsageFault, match="load_best_model_at_end is set"):
        trainer.train()
    assert not sessions


def test_images_count_as_samples(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8
    )
    images = [{"pixel_values": torch.randn(3, 16, 16), "labels": number % 2} for number in range(16)]
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, report_to="none", use_cpu=True
    )
    model = transformers.ViTForImageClassification(config)
    transformers.Trainer(
        model=model, args=args, train_dataset=images, callbacks=[integration.SwarmCallback(RUN)]
    ).train()
    assert sessions[0].training.link.mailbox.trainer.tokens == 12


def test_the_runs_schedule_and_cool_down_are_in_the_rate(tmp_path: Path, sessions: list[LoneSwarm]) -> None:
    rates: list[float] = []

    class Watch(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            rates.append(given["optimizer"].param_groups[0]["lr"])

    def cool_down(swarm: Any) -> None:
        swarm.training.link.mailbox.network.learning_rate_factor = 0.25

    callback = integration.SwarmCallback(RUN, on_joined=cool_down)
    options = {"learning_rate": 0.8, "lr_scheduler_type": "constant", "max_steps": 3}
    trainer_of(tmp_path, callback, more=[Watch()], **options).train()
    assert rates == pytest.approx([0.2, 0.2, 0.2])
