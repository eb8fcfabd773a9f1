"""A session without a network: the hooks, counts and anchors of a real one, in one process and at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from averaging.outer.fragment_layout import build_layout
from peer.config.learning_rate_schedule import ScheduleSection
from peer.config.manifest import RunManifest
from peer.config.peer_config import PeerConfig
from peer.config.training_section import TrainingSection
from peer.join.own_loop_scheduler import RunSchedulers
from peer.join.session import Swarm
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.slots import MergeKind
from peer.owner.new_run import trained_parameters
from peer.trainer.loop.local_training import LocalTraining
from peer.trainer.loop.mailbox_link import TrainerLink

MANIFESTS = [RunManifest(name="lone")]
"""The last one is that of the runs which are joined."""


def link_of(parameters: Sequence[tuple[str, torch.Tensor]]) -> TrainerLink:
    """A link without a network side. Its anchors, at version 1, are what the parameters are now."""
    layout = build_layout([(name, tuple(value.shape)) for name, value in parameters], 2, "balanced")
    mailbox = Mailbox.in_process(layout.sizes)
    link = TrainerLink(parameters, layout, mailbox, sync_every=1000, clock=lambda: 0.0, pause=None)
    for fragment in layout.fragments:
        with mailbox.states[fragment.index].changing():
            link.ranks.gather_live(link.portion, fragment, torch.from_numpy(mailbox.states[fragment.index].anchor))
            mailbox.states[fragment.index].version = 1
    return link


class LoneSwarm(Swarm):
    """Its anchor is what the module is on entering, until `deliver`.

    Attributes:
        left: how the block was left: an exception's type or None; not there while it is inside.
        given: the arguments of `join`.
    """

    def __init__(self, run_id: str, module: Any, optimizer: Any, given: dict[str, Any]) -> None:
        config = PeerConfig.model_validate({"run_id": run_id})
        super().__init__(config, module, optimizer, given.get("on_event"), lambda: self.is_over, given.get("state"))
        self.given = given
        self.is_over = False
        self.left: list[type[BaseException] | None] = []
        self.training_settings: dict[str, Any] = {}

    def __enter__(self) -> Self:
        link = link_of(trained_parameters(self._module))
        self._manifest = MANIFESTS[-1]
        self._training = LocalTraining(
            self._module, self._optimizer, link, seed=0, peer_id="lone", stop=self._stop, state=self._state
        )
        self._schedulers = RunSchedulers(self._training.optimizers, lambda: self.learning_rate_factor)
        self._training.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.training.__exit__(kind, error, trace)
        if self._schedulers is not None:
            self._schedulers.close()
        self.left.append(kind)

    @property
    def addresses(self) -> tuple[str, ...]:
        return ("/ip4/127.0.0.1/tcp/1",)

    def deliver(self, value: float) -> None:
        """The swarm moves: `value` is added to every parameter, and is what every anchor has."""
        link = self.training.link
        for fragment in link.layout.fragments:
            state = link.mailbox.states[fragment.index]
            with state.changing():
                state.anchor.fill(value)
                state.version += 1
            moved = np.full(fragment.num_values, value, np.float32)
            assert link.mailbox.inbox.try_post(MergeKind.ADD, fragment.index, moved, version=state.version)


@contextmanager
def annealing() -> Iterator[None]:
    """Runs that are joined inside have a schedule, and ten steps of warm-up."""
    schedule = ScheduleSection(kind="cosine", tokens=10**6)
    MANIFESTS.append(RunManifest(name="lone", training=TrainingSection(warmup_steps=10, schedule=schedule)))
    try:
        yield
    finally:
        MANIFESTS.pop()


@contextmanager
def joining_alone(monkeypatch: Any, *places: str) -> Iterator[list[LoneSwarm]]:
    """`join` at these dotted names makes a `LoneSwarm`; the list gets each of them."""
    made: list[LoneSwarm] = []

    def join(run_id: str, *, module: Any, optimizer: Any, **given: Any) -> LoneSwarm:
        made.append(LoneSwarm(run_id, module, optimizer, given))
        return made[-1]

    with monkeypatch.context() as patch:
        for place in places:
            patch.setattr(place, join)
        yield made
