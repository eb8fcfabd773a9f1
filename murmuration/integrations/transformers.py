"""Train with a swarm from `transformers.Trainer`, or from a trainer of trl: one callback.

    from murmuration.integrations.transformers import SwarmCallback

    trainer = Trainer(model=model, args=args, train_dataset=dataset, callbacks=[SwarmCallback(run_id, peers=[address])])
    trainer.train()
    trainer.save_model("out")   # the swarm's anchor

The trainer keeps its loop, data, precision, logging and evaluation. If the run has a schedule, the schedule decides the
learning rate; set `lr_scheduler_type="constant"`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from murmuration import Swarm, UsageFault
from murmuration.integrations.callback_session import CallbackSession

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        f"murmuration.integrations.transformers needs transformers ({error}); "
        "run `pip install '.[hf]'` in the folder of Murmuration"
    ) from error

ANCHOR_FOLDER = "anchor"
"""Folder of the anchor in each checkpoint of the trainer, beside the live model."""
_CONSTANT = ("constant", "constant_with_warmup")

log = logging.getLogger(__name__)


class SwarmCallback(TrainerCallback):
    """Joins a run when training begins, and leaves the run when training ends.

    The trainer counts tokens, because the callback sets `include_num_input_tokens_seen`; if the model's input is not
    tokens, each sample counts as one token. The callback reports the loss that the trainer logs. Each checkpoint of the
    trainer gets a folder ``anchor``, in which `save_pretrained` saves the swarm's anchor. If there are several
    processes (DDP), the process of rank 0 is the peer.

    After an exception in the loop, the session stays open until `leave` is called, the next trainer of this process
    joins the run, or the process ends.
    `train(resume_from_checkpoint=...)` continues the trainer's step count, data and schedule, which otherwise start
    anew. The parameters always come from the swarm, and the moments from this peer's newest checkpoint in its data
    folder.

    Args:
        run_id, peers: as for `murmuration.join`; `murmuration.create_custom_run` or `peer init` creates the run.
        on_joined: called with the session after joining, for example to print its addresses.
        ends_with_anchor: whether the model ends as the swarm's anchor instead of this peer's live parameters.
        choices: any other argument of `murmuration.join`, such as ``invite``, ``data_dir`` or ``on_event``.

    Raises:
        UsageFault: (when training begins) an argument is wrong, or a setting of the trainer does not work in a swarm.
    """

    def __init__(
        self,
        run_id: str | None = None,
        *,
        peers: Sequence[str] = (),
        on_joined: Callable[[Swarm], object] = lambda swarm: None,
        ends_with_anchor: bool = True,
        **choices: Any,
    ) -> None:
        self._session = CallbackSession(run_id, peers, choices, on_joined, ends_with_anchor=ends_with_anchor)
        self._seen_tokens = 0

    @property
    def swarm(self) -> Swarm | None:
        """The session, in the main process during training; otherwise None."""
        return self._session.swarm

    def leave(self) -> None:
        """Leave the run if the session is still open after an exception."""
        self._session.leave(RuntimeError("left by hand"))

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Let the trainer count tokens."""
        if args.include_num_input_tokens_seen == "no":
            args.include_num_input_tokens_seen = "all"

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Join the run."""
        if args.load_best_model_at_end:
            raise UsageFault(
                "load_best_model_at_end is set, which replaces the swarm's model with an older model; expected False; "
                "each checkpoint contains its anchor in the folder 'anchor'."
            )
        self._seen_tokens = state.num_input_tokens_seen
        self._session.enter(given["model"], [given["optimizer"]], [given["lr_scheduler"]])
        swarm = self._session.swarm
        if swarm is None:
            return
        if self._session.has_schedule and str(args.lr_scheduler_type).rpartition(".")[2].lower() not in _CONSTANT:
            log.warning(
                "the run has a learning-rate schedule, so the trainer's schedule (%s) has no effect; expected "
                'lr_scheduler_type="constant"',
                args.lr_scheduler_type,
            )
        if swarm.inner_steps and not state.global_step:
            log.warning(
                "this peer has already done %d steps in this run, but the trainer starts its count, data and learning "
                "rate again, from 0 to %d; call train(resume_from_checkpoint=True) to continue them",
                swarm.inner_steps,
                state.max_steps,
            )

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Report the tokens of the step, and set its learning rate if the run decides the rate."""
        is_text = getattr(given["model"], "main_input_name", "input_ids") == "input_ids"
        tokens = state.num_input_tokens_seen - self._seen_tokens
        self._seen_tokens = state.num_input_tokens_seen
        samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        self._session.report(tokens=tokens if is_text and tokens > 0 else samples)
        optimizer = given["optimizer"]
        peaks = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
        if self._session.set_rates(optimizer, peaks):
            # The trainer logs the rate of its scheduler.
            scheduler = given["lr_scheduler"]
            while hasattr(scheduler, "scheduler"):
                scheduler = scheduler.scheduler
            scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Report the training loss."""
        if logs is not None and "loss" in logs:
            self._session.report(loss=float(logs["loss"]))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Stop if the run has ended or this peer is asked to stop."""
        if getattr(given["optimizer"], "step_was_skipped", False) and self._session.swarm is not None:
            self._session.swarm.skip_step()
        control.should_training_stop |= self._session.follow()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Save the anchor beside the live model."""
        kept = (given["model"], given.get("processing_class"))
        parts: list[Any] = [part for part in kept if hasattr(part, "save_pretrained")]
        folder = Path(args.output_dir or ".", f"checkpoint-{state.global_step}", ANCHOR_FOLDER)
        if parts:
            self._session.save_anchor(lambda: [part.save_pretrained(folder) for part in parts])

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Leave the run."""
        self._session.leave()
