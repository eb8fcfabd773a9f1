"""A session in a run that callbacks enter and leave, because a library's own loop offers no `with` block."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from murmuration import Swarm, join
from murmuration.integrations.replicas import Replicas


class CallbackSession:
    """Joins a run in `enter`; leaves in `leave`, before the next `enter`, or when the process ends.

    Args:
        run_id, peers, choices: as for `murmuration.join`.
        on_joined: called with the session after joining.
        ends_with_anchor: whether leaving copies the swarm's anchor into the module, so that a later save contains the
            anchor.

    Attributes:
        swarm: the open session of this process; None outside a session, and in processes of other ranks.
    """

    def __init__(
        self,
        run_id: str | None,
        peers: Sequence[str],
        choices: Mapping[str, Any],
        on_joined: Callable[[Swarm], object],
        *,
        ends_with_anchor: bool,
    ) -> None:
        self._run_id = run_id
        self._peers = tuple(peers)
        self._choices = dict(choices)
        self._on_joined = on_joined
        self._ends_with_anchor = ends_with_anchor
        self._module: nn.Module | None = None
        self._replicas: Replicas | None = None
        self.swarm: Swarm | None = None

    def enter(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[Any],
        *,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Join in the process of rank 0; copy its parameters to all other processes.

        The moments of the optimizers are restored from the checkpoint. The options of the optimizers and the states of
        the schedulers stay as the loop set them, because they follow the loop's step count and not this peer's.

        Args:
            schedulers: schedulers of the optimizers, whose state the loop saves itself.
            gives_up: called while joining; returns whether the user wants the loop to end.

        Raises:
            UsageFault, LocalFault, Incompatible: as `murmuration.join`; the loop must not continue.
        """
        self.leave(RuntimeError("the previous loop"))
        self._module, self._replicas = module, Replicas(module)
        if self._replicas.is_main:
            state = {f"scheduler.{place}": _KeptByItsLoop(scheduler) for place, scheduler in enumerate(schedulers)}
            groups = [group for optimizer in optimizers for group in optimizer.param_groups]
            options = [{name: value for name, value in group.items() if name != "params"} for group in groups]
            own_stop = self._choices.get("stop", lambda: False)

            def stop() -> bool:
                return own_stop() or (self.swarm is None and gives_up())

            choices = {**self._choices, "stop": stop}
            session = join(self._run_id, module=module, optimizer=optimizers, peers=self._peers, state=state, **choices)
            self.swarm = session.__enter__()
            groups = [group for optimizer in optimizers for group in optimizer.param_groups]
            for group, given in zip(groups, options, strict=True):
                group.update(given)
            atexit.register(self.leave, SystemExit())
            self._on_joined(self.swarm)
        self._replicas.follow(self.swarm)

    def follow(self) -> bool:
        """Count an inner step, in all processes, and return whether the loop should end."""
        return self._replicas is not None and self._replicas.follow(self.swarm)

    def report(self, loss: float | None = None, tokens: int | None = None) -> None:
        """Report like `Swarm.report`; does nothing in processes of other ranks."""
        if self.swarm is not None:
            self.swarm.report(loss, tokens or None)

    @property
    def has_schedule(self) -> bool:
        """Whether the run's schedule decides the learning rate."""
        return self.swarm is not None and self.swarm.manifest.training.schedule.changes_rate

    def set_rates(self, optimizer: Any, peaks: Sequence[float]) -> bool:
        """Set the learning rate of each parameter group before a step, if the run decides the rate.

        Without a schedule, a cool-down that the owner started only limits the loop's own rate.

        Returns:
            whether the run decides the rate.
        """
        if self.swarm is None:
            return False
        cooldown = self.swarm.training.link.learning_rate_factor
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            if self.has_schedule:
                group["lr"] = peak * self.swarm.learning_rate_factor
            elif cooldown < 1:
                group["lr"] = min(group["lr"], peak * cooldown)
        return self.has_schedule or cooldown < 1

    def save_anchor(self, save: Callable[[], object]) -> None:
        """Call `save` while the module holds the anchor. Does nothing in processes of other ranks."""
        if self.swarm is not None:
            with self.swarm.anchor():
                save()

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the run and save a checkpoint. Does nothing outside a session.

        Args:
            error: the exception that ended the loop; None if the loop ended normally, so its last work is sent.
        """
        swarm, module = self.swarm, self._module
        if swarm is None or module is None:
            return
        self.swarm = None
        atexit.unregister(self.leave)
        anchor: dict[str, torch.Tensor] = {}
        try:
            if error is None and self._ends_with_anchor:
                with swarm.anchor():
                    anchor = {
                        name: parameter.detach().clone()
                        for name, parameter in module.named_parameters()
                        if parameter.requires_grad
                    }
        finally:
            swarm.__exit__(None if error is None else type(error), error, None)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in anchor:
                    parameter.copy_(anchor[name])


class _KeptByItsLoop:
    """Replaces a scheduler in the `state` of `join`, because the loop's own checkpoints contain the scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self.last_epoch = getattr(scheduler, "last_epoch", 0)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        """Do nothing: the loop restores the scheduler, or starts a new schedule."""
