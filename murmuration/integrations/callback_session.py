"""A session in a run that callbacks enter and leave, since another library's loop has no `with` block for it."""

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
    """Joins at `enter`; leaves at `leave`, at the next `enter` (of any for the run), or when the process ends.

    Args:
        run_id, peers, choices: as for `murmuration.join`.
        on_joined: is given the session once it is there.
        ends_with_anchor: leaving puts the swarm's anchor into the module, so that what is saved afterwards is it.

    Attributes:
        swarm: inside a session of this process; None outside, and in processes of other ranks.
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
        """Join in the process of rank 0; in the others take over its parameters.

        Moments of the optimizers come back. Their options and the schedulers stay as the loop has them, since these
        follow its count of steps, which is not this peer's.

        Args:
            schedulers: of the optimizers, kept by the loop itself.
            gives_up: asked while it joins: whether somebody wants the loop to end.

        Raises:
            UsageFault, LocalFault, Incompatible: as `murmuration.join`; the loop must not go on.
        """
        self.leave(RuntimeError("the loop before"))
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
        """Count an inner step, in all processes; returns whether the loop should end."""
        return self._replicas is not None and self._replicas.follow(self.swarm)

    def report(self, loss: float | None = None, tokens: int | None = None) -> None:
        """Report like `Swarm.report`; does nothing in processes of other ranks."""
        if self.swarm is not None:
            self.swarm.report(loss, tokens or None)

    @property
    def has_schedule(self) -> bool:
        """Whether the run decides the learning rate, by its own clock."""
        return self.swarm is not None and self.swarm.manifest.training.schedule.changes_rate

    def set_rates(self, optimizer: Any, peaks: Sequence[float]) -> bool:
        """Set the run's share of the peak in each parameter group before a step, where the run decides it.

        In a cool-down that the owner started the loop's own rate stays where it is lower.

        Returns:
            whether the run decides it.
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
        """Call `save` while the module is the anchor; nothing in processes of other ranks."""
        if self.swarm is not None:
            with self.swarm.anchor():
                save()

    def leave(self, error: BaseException | None = None) -> None:
        """Say goodbye, keep a checkpoint; nothing outside a session.

        Args:
            error: what ended the loop; None: it ended by itself, and its last work is sent.
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
    """Tells `join` that a scheduler is taken care of: the loop's own checkpoints have it."""

    def __init__(self, scheduler: Any) -> None:
        self.last_epoch = getattr(scheduler, "last_epoch", 0)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        """The loop did it, or begins a schedule of its own."""
