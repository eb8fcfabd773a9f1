"""The built-in inner loop, as a `LocalTraining`: AdamW or Muon with warm-up, on the built-in or any other model.

AdamW (arXiv 1711.05101) or Muon (`peer/trainer/model/muon.py`). The rate is a linear warm-up of the optimizer's own
moments, times a share of the peak. The run's clock gives the share to all peers (`peer.config.learning_rate_schedule`).
Gradients are clipped by their global norm (arXiv 1211.5063) and accumulated over several backward passes. The
computation of a step is in `peer/trainer/computing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from dht.ground.errors import LocalFault
from dht.records.evaluation import Evaluation
from peer.config.data_source import EVALUATION_BATCHES
from peer.config.training_section import TrainingSection
from peer.trainer.computing.compute_choices import ComputeChoices, Tell
from peer.trainer.data.corpus import Corpus
from peer.trainer.loop.inner_step import InnerStep
from peer.trainer.loop.local_training import LocalTraining, StoppedWaiting
from peer.trainer.loop.mailbox_link import TrainerLink

MAX_SKIPPED_IN_A_ROW = 50
"""Steps with a non-finite loss or gradient before the trainer gives up: more than a bad batch or a brief spike causes,
and well below an hour of wasted electricity.
"""


class Trainer:
    """Trains `model` on `corpus`; `step` makes one inner step, `run` makes all of them.

    Args:
        model: a module that is also a `LanguageModel`, already on `device`.
        link: made from `model.named_parameters()`.
        seed, peer_id: determine this peer's data.
        evaluate_every_steps: inner steps between two measurements of the validation loss; 0 never measures.
        checkpoints: see `LocalTraining`.
        choices, tell: see `InnerStep`.
    """

    def __init__(
        self,
        model: nn.Module,
        corpus: Corpus,
        settings: TrainingSection,
        link: TrainerLink,
        *,
        seed: int,
        peer_id: str,
        device: torch.device | None = None,
        evaluate_every_steps: int = 0,
        ready_timeout_seconds: float | None = None,
        checkpoints: Path | None = None,
        choices: ComputeChoices | None = None,
        tell: Tell | None = None,
    ) -> None:
        self.device = device or torch.device("cpu")
        self.link = link
        self._corpus = corpus
        self._settings = settings
        self._evaluate_every_steps = evaluate_every_steps
        self._inner = InnerStep(model, corpus, settings, self.device, link.ranks, choices, tell)
        self._stop: Callable[[], bool] = lambda: False
        self.training = LocalTraining(
            model,
            self._inner.optimizer,
            link,
            seed=seed,
            peer_id=peer_id,
            stop=lambda: self._stop(),
            ready_timeout_seconds=ready_timeout_seconds,
            checkpoints=checkpoints,
        )
        self._skipped_in_a_row = 0

    def step(self) -> float:
        """Make one inner step inside `with trainer.training`. Return its mean loss in nats per token, skipped or not.

        A non-finite loss or gradient changes only the skip counter; the next step reads different data.

        Raises:
            LocalFault: `MAX_SKIPPED_IN_A_ROW` such steps in a row, or live parameters that are no longer finite.
        """
        settings = self._settings
        positions = self.training.next_blocks(
            settings.batch_size * settings.accumulation_steps,
            self._inner.language_model.context,
            self._corpus.training,
        )
        factor = self.link.learning_rate_factor
        age = self.training.optimizer_age
        self.link.ranks.step(positions, age, factor)
        mean_loss, norm = self._inner.gradient(positions)
        if not (math.isfinite(mean_loss) and math.isfinite(norm)):
            self._skip(mean_loss, norm)
            return mean_loss
        self._skipped_in_a_row = 0
        self.training.report(mean_loss)
        self._inner.update(age, factor)
        return mean_loss

    def run(
        self,
        stop: Callable[[], bool] = lambda: False,
        max_steps: int | None = None,
        is_resting: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train until `stop` or the network process ends training, or for `max_steps` inner steps, including earlier
        sessions.

        No step is taken while `is_resting`, which is called before each step. Resting does not work with several ranks,
        whose exchanges would time out. Measures the validation loss at the start, every `evaluate_every_steps`, and at
        the end if the anchor has moved.

        Raises:
            LocalFault: see `step`; also if no anchors arrived within `ready_timeout_seconds`.
        """
        self._stop = stop
        with self.training:
            if self._evaluate_every_steps and not self.training.should_stop:
                self.evaluate()
            while not self.training.should_stop and (max_steps is None or self.link.inner_steps < max_steps):
                if is_resting():
                    self.training.rest(is_resting)
                    continue
                before = self.training.optimizer_age
                try:
                    self.step()
                except StoppedWaiting:
                    return
                age = self.training.optimizer_age
                if age > before and self._evaluate_every_steps and age % self._evaluate_every_steps == 0:
                    self.evaluate()

    def evaluate(self) -> Evaluation | None:
        """Evaluate the anchor, in nats per token; return None while it is torn."""
        return self.training.evaluate(self.measure)

    def measure(self) -> float:
        """Return the mean loss of the live parameters over the fixed held-out batches, in nats per token."""
        return self._inner.evaluate(EVALUATION_BATCHES)

    def _skip(self, loss: float, norm: float) -> None:
        self._inner.optimizer.zero_grad(set_to_none=True)
        self.training.skip_step()
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise LocalFault(
                f"{self._skipped_in_a_row} inner steps in a row had loss {loss} and gradient norm {norm}; expected "
                "finite numbers; nothing of them was sent; check the data and the device's memory, then join again"
            )
