"""The checklist that a peer shows until it is a member: finished steps, current steps, and reasons for
waiting. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dht.ground.quantities import bytes_text, plural, seconds_text, share_text
from peer.events import peer_events as events
from peer.events.anchor_events import Fetched
from peer.panel.updates import LoadingStep, StepName

LABELS: dict[StepName, str] = {
    "key": "Your key",
    "program": "Program",
    "run": "The run",
    "model": "Model",
    "state": "State",
}
"""Steps in their order. A seed has neither a program nor a model."""
DOING: dict[StepName, str] = {
    "key": "reading it",
    "program": "loading PyTorch",
    "run": "looking for members",
    "model": "building it and opening the data",
    "state": "asking members for the trained model",
}

WAITING_FIRST = "waiting for the first trainer"
"""Detail for the seed of a new run, in which there is no trained state yet."""


def text_of(step: LoadingStep) -> str:
    """Return the detail of a step, or its current activity."""
    return step.detail or ("" if step.is_done or not step.is_begun else DOING[step.name])


@dataclass(frozen=True, slots=True)
class Checklist:
    """Steps in their order."""

    lines: tuple[LoadingStep, ...] = ()
    is_over: bool = False
    """Whether this peer is a member."""

    @classmethod
    def of(cls, *, is_seed: bool) -> Checklist:
        names = [name for name in LABELS if not is_seed or name not in ("program", "model")]
        return cls(tuple(LoadingStep(name, is_begun=name == "key") for name in names))

    def with_step(self, step: LoadingStep) -> Checklist:
        """Return the checklist after a step began, continued or finished."""
        known = {line.name: line for line in self.lines}
        if step.name not in known or (known[step.name].is_done and not step.is_done):
            return self
        return replace(self, lines=tuple(step if line.name == step.name else line for line in self.lines))

    def after(self, event: events.Event) -> Checklist:
        """Return the checklist after an event."""
        if self.is_over:
            return self
        match fact := event.fact:
            case events.SwarmContact(state="waiting"):
                since = f" ({seconds_text(round(fact.seconds))} so far)" if fact.seconds >= 1 else ""
                return self.with_step(LoadingStep("run", f"{fact.reason}{since}", is_waiting=True))
            case events.MemberChanged(has_joined=True):
                # A present member may have more state than this seed.
                is_first = any(line.detail == WAITING_FIRST for line in self.lines)
                return self.with_step(LoadingStep("state")) if is_first else self
            case Fetched(is_done=False):
                left = fact.time_left
                told = f"{share_text(fact.share)} of {bytes_text(fact.total_bytes)}, {left} left"
                return self.with_step(LoadingStep("state", told))
            case Fetched() if fact.names:
                return self.with_step(
                    LoadingStep("run", f"found, with {plural(len(fact.names), 'file')}", is_done=True)
                )
            case Fetched():
                told = f"{bytes_text(fact.num_bytes)} from {plural(len(fact.donors) or 1, 'member')}"
                return self.with_step(LoadingStep("state", told, is_done=True))
            case events.JoinedRun():
                return replace(self, is_over=True)
        return self
