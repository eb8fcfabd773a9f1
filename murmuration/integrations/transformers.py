"""Train with a swarm from `transformers.Trainer`, or from a trainer of trl: one callback.

    from murmuration.integrations.transformers import SwarmCallback

    trainer = Trainer(model=model, args=args, train_dataset=dataset, callbacks=[SwarmCallback(run_id, peers=[address])])
    trainer.train()
    trainer.save_model("out")   # the swarm's anchor

The trainer keeps its loop, data, precision, logging and evaluation. Where the run has a schedule of its own, that is
the learning rate's; give `lr_scheduler_type="constant"`.
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
        f"murmuration.integrations.transformers needs transformers ({error}); expected it installed; "
        "run `pip install '.[hf]'` in the folder of Murmuration"
    ) from error

ANCHOR_FOLDER = "anchor"
"""Folder in each checkpoint of the trainer, beside its live model."""
_CONSTANT = ("constant", "constant_with_warmup")

log = logging.getLogger(__name__)


class SwarmCallback(TrainerCallback):
    """Joins a run when training begins and leaves it when training ends.

    Tokens are counted by the trainer, which is told to (`include_num_input_tokens_seen`); where the model's input are
    no tokens, samples are. The loss is the one that it logs. Each checkpoint of the trainer gets a folder ``anchor``
    with what `save_pretrained` makes of the swarm's anchor. With several processes (DDP) that of rank 0 is the peer.

    After an exception in the loop the session ends with the process, when the next trainer of this process joins the
    run, or by `leave`.
    `train(resume_from_checkpoint=...)` continues the trainer's count, data and schedule; they begin anew without it.
    Parameters and moments are those of the swarm and of this peer's newest checkpoint in its data folder.

    Args:
        run_id, peers: as for `murmuration.join`; the run is made with `murmuration.create_custom_run` or `peer init`.
        on_joined: is given the session once it is there, to print its addresses for instance.
        ends_with_anchor: afterwards the model is the swarm's anchor instead of this peer's live parameters.
        choices: any other argument of `murmuration.join`, such as ``invite``, ``data_dir`` or ``on_event``.

    Raises:
        UsageFault: (when training begins) an argument is wrong, or the trainer's settings do not go with a swarm.
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
        """The session, in the main process while it trains."""
        return self._session.swarm

    def leave(self) -> None:
        """Leave the run, if it is still joined after an exception."""
        self._session.leave(RuntimeError("left by hand"))

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Have tokens counted."""
        if args.include_num_input_tokens_seen == "no":
            args.include_num_input_tokens_seen = "all"

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Join."""
        if args.load_best_model_at_end:
            raise UsageFault(
                "load_best_model_at_end is set, which puts an older model in place of the swarm's; expected False; "
                "the anchor of each checkpoint lies in its folder 'anchor'."
            )
        self._seen_tokens = state.num_input_tokens_seen
        self._session.enter(given["model"], [given["optimizer"]], [given["lr_scheduler"]])
        swarm = self._session.swarm
        if swarm is None:
            return
        if self._session.has_schedule and str(args.lr_scheduler_type).rpartition(".")[2].lower() not in _CONSTANT:
            log.warning(
                "the run has a learning-rate schedule of its own, so that of the trainer (%s) has no effect; expected "
                'lr_scheduler_type="constant"',
                args.lr_scheduler_type,
            )
        if swarm.inner_steps and not state.global_step:
            log.warning(
                "this peer has done %d steps in this run already, and the trainer begins its count, data and learning "
                "rate anew, from 0 to %d; expected train(resume_from_checkpoint=True) to continue them",
                swarm.inner_steps,
                state.max_steps,
            )

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Say what the step is made of, and at which rate."""
        is_text = getattr(given["model"], "main_input_name", "input_ids") == "input_ids"
        tokens = state.num_input_tokens_seen - self._seen_tokens
        self._seen_tokens = state.num_input_tokens_seen
        samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        self._session.report(tokens=tokens if is_text and tokens > 0 else samples)
        optimizer = given["optimizer"]
        peaks = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
        if self._session.set_rates(optimizer, peaks):
            # The trainer logs what its scheduler says.
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
        """Tell the training loss."""
        if logs is not None and "loss" in logs:
            self._session.report(loss=float(logs["loss"]))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Stop when the swarm or its owner says so."""
        if getattr(given["optimizer"], "step_was_skipped", False) and self._session.swarm is not None:
            self._session.swarm.skip_step()
        control.should_training_stop |= self._session.follow()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Put the anchor beside the live model."""
        kept = (given["model"], given.get("processing_class"))
        parts: list[Any] = [part for part in kept if hasattr(part, "save_pretrained")]
        folder = Path(args.output_dir or ".", f"checkpoint-{state.global_step}", ANCHOR_FOLDER)
        if parts:
            self._session.save_anchor(lambda: [part.save_pretrained(folder) for part in parts])

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Leave."""
        self._session.leave()
