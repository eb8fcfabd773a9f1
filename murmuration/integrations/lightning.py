"""Train with a swarm from `lightning.Trainer`: one callback.

    from murmuration.integrations.lightning import SwarmCallback

    trainer = Trainer(max_steps=1000, callbacks=[SwarmCallback(run_id, peers=[address])])
    trainer.fit(module, loader)
    trainer.save_checkpoint("out.ckpt")   # the swarm's anchor

Create the run with `murmuration.create_custom_run(name, module)` from the same module: its parameter names must match.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from murmuration import Swarm
from murmuration.integrations.callback_session import CallbackSession

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise ImportError(
        f"murmuration.integrations.lightning needs lightning ({error}); run `pip install lightning`"
    ) from error

log = logging.getLogger(__name__)


def tokens_of(batch: Any) -> int:
    """Return the number of tokens in a batch.

    The tokens are the elements of `input_ids` or of the first tensor. If that tensor does not hold integers, each
    sample counts as one token.
    """
    if isinstance(batch, Mapping):
        batch = batch["input_ids"] if "input_ids" in batch else next(iter(batch.values()))
    while isinstance(batch, list | tuple) and batch:
        batch = batch[0]
    if not isinstance(batch, Tensor):
        return 1
    is_tokens = not batch.dtype.is_floating_point and batch.dtype != torch.uint8
    return batch.numel() if is_tokens else len(batch) if batch.dim() else 1


class SwarmCallback(Callback):
    """Joins a run when fitting begins, and leaves the run when fitting ends, also after an exception.

    All optimizers of the module take part. If the run has a schedule, the schedule decides the learning rate. Otherwise
    the module's own schedulers decide the rate, and Lightning's checkpoints contain their states. If there are several
    processes (the DDP strategies), the process of rank 0 is the peer.

    Args:
        run_id, peers: as for `murmuration.join`; `murmuration.create_custom_run` creates the run.
        part: name of the submodule that the run trains; default: the whole module.
        count: returns the number of tokens in a batch, by which this peer's work is weighted.
        on_joined: called with the session after joining.
        ends_with_anchor: whether the module ends as the swarm's anchor instead of this peer's live parameters.
        choices: any other argument of `murmuration.join`, such as ``invite``, ``data_dir`` or ``on_event``.

    Raises:
        UsageFault, LocalFault, Incompatible: (when fitting begins) as `murmuration.join`.
    """

    def __init__(
        self,
        run_id: str | None = None,
        *,
        peers: Sequence[str] = (),
        part: str = "",
        count: Callable[[Any], int] = tokens_of,
        on_joined: Callable[[Swarm], object] = lambda swarm: None,
        ends_with_anchor: bool = True,
        **choices: Any,
    ) -> None:
        self._session = CallbackSession(run_id, peers, choices, on_joined, ends_with_anchor=ends_with_anchor)
        self._part = part
        self._count = count
        self._last_step = 0
        self._peaks: dict[int, list[float]] = {}

    @property
    def swarm(self) -> Swarm | None:
        """The session, in the main process during training; otherwise None."""
        return self._session.swarm

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Join the run."""
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        module = pl_module.get_submodule(self._part)
        # Lightning handles SIGTERM, but checks for it only between batches.
        self._session.enter(
            module,
            trainer.optimizers,
            schedulers,
            gives_up=lambda: bool(trainer.received_sigterm),
        )
        self._last_step = trainer.global_step
        if schedulers and self._session.has_schedule:
            log.warning(
                "the run has a learning-rate schedule, with which the module's %d schedulers conflict; expected no "
                "schedulers; return only optimizers from configure_optimizers",
                len(schedulers),
            )

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int) -> None:
        """Count the tokens of the batch."""
        self._session.report(tokens=self._count(batch))

    def on_before_optimizer_step(self, trainer: Any, pl_module: nn.Module, optimizer: Any) -> None:
        """Set the learning rate, if the run decides it."""
        peaks = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
        self._session.set_rates(optimizer, self._peaks.setdefault(id(optimizer), peaks))

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report the loss; stop if the run has ended or this peer is asked to stop."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            self._session.report(loss=float(loss))
        if trainer.global_step > self._last_step:
            self._last_step = trainer.global_step
            trainer.should_stop = trainer.should_stop or self._session.follow()

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Leave the run."""
        self._session.leave()

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Leave the run."""
        self._session.leave(exception)
