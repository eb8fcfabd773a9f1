"""Train with a swarm from `lightning.Trainer`: one callback.

    from murmuration.integrations.lightning import SwarmCallback

    trainer = Trainer(max_steps=1000, callbacks=[SwarmCallback(run_id, peers=[address])])
    trainer.fit(module, loader)
    trainer.save_checkpoint("out.ckpt")   # the swarm's anchor

A run is made with `murmuration.create_custom_run(name, module)` from the same module, whose names count.
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
        f"murmuration.integrations.lightning needs lightning ({error}); expected it installed; pip install lightning"
    ) from error

log = logging.getLogger(__name__)


def tokens_of(batch: Any) -> int:
    """Elements of `input_ids`, or of the first tensor if it has whole numbers (tokens); otherwise its samples."""
    if isinstance(batch, Mapping):
        batch = batch["input_ids"] if "input_ids" in batch else next(iter(batch.values()))
    while isinstance(batch, list | tuple) and batch:
        batch = batch[0]
    if not isinstance(batch, Tensor):
        return 1
    is_tokens = not batch.dtype.is_floating_point and batch.dtype != torch.uint8
    return batch.numel() if is_tokens else len(batch) if batch.dim() else 1


class SwarmCallback(Callback):
    """Joins a run when fitting begins, and leaves it when fitting ends, by an exception too.

    All optimizers of the module take part. Where the run has a schedule, that is the learning rate's. Otherwise
    it is the module's, and the states of its schedulers are in the checkpoints. With several
    processes (the strategies of DDP) that of rank 0 is the peer.

    Args:
        run_id, peers: as for `murmuration.join`; the run is made with `murmuration.create_custom_run`.
        part: name of the submodule that the run trains; all of the module by default.
        count: tokens of a batch; these weigh this peer's work.
        on_joined: is given the session once it is there.
        ends_with_anchor: afterwards the module is the swarm's anchor instead of this peer's live parameters.
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
        """The session, in the main process while it trains."""
        return self._session.swarm

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Join."""
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        module = pl_module.get_submodule(self._part)
        # Lightning takes SIGTERM, and looks for it between batches alone.
        self._session.enter(
            module,
            trainer.optimizers,
            schedulers,
            gives_up=lambda: bool(trainer.received_sigterm),
        )
        self._last_step = trainer.global_step
        if schedulers and self._session.has_schedule:
            log.warning(
                "the run has a schedule of the learning rate, which %d schedulers of the module would override; "
                "expected none: return optimizers alone from configure_optimizers",
                len(schedulers),
            )

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int) -> None:
        """Count what is read."""
        self._session.report(tokens=self._count(batch))

    def on_before_optimizer_step(self, trainer: Any, pl_module: nn.Module, optimizer: Any) -> None:
        """Set the rate, where the run decides it."""
        peaks = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
        self._session.set_rates(optimizer, self._peaks.setdefault(id(optimizer), peaks))

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Tell the loss; stop when the swarm or its owner says so."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            self._session.report(loss=float(loss))
        if trainer.global_step > self._last_step:
            self._last_step = trainer.global_step
            trainer.should_stop = trainer.should_stop or self._session.follow()

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Leave."""
        self._session.leave()

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Leave."""
        self._session.leave(exception)
