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
    "state": "asking members for what the run has learned",
}

WAITING_FIRST = "waiting for the first trainer"
"""Detail for the seed of a new run, in which there is no trained state yet."""


@dataclass(frozen=True, slots=True)
class Line:
    """One step. Begun but not done means in progress. `is_waiting`: the step waits for something outside this peer."""

    name: StepName
    detail: str = ""
    is_begun: bool = False
    is_done: bool = False
    is_waiting: bool = False

    @property
    def text(self) -> str:
        """The detail, or the current activity."""
        return self.detail or ("" if self.is_done or not self.is_begun else DOING[self.name])


@dataclass(frozen=True, slots=True)
class Checklist:
    """Steps in their order."""

    lines: tuple[Line, ...] = ()
    is_over: bool = False
    """Whether this peer is a member."""

    @classmethod
    def of(cls, *, is_seed: bool) -> Checklist:
        names = [name for name in LABELS if not is_seed or name not in ("program", "model")]
        return cls(tuple(Line(name, is_begun=name == "key") for name in names))

    def with_step(self, step: LoadingStep) -> Checklist:
        """Return the checklist after a step began, continued or finished."""
        return self._changed(step.name, step.detail, is_done=step.is_done)

    def after(self, event: events.Event) -> Checklist:
        """Return the checklist after an event."""
        if self.is_over:
            return self
        match fact := event.fact:
            case events.SwarmContact(state="waiting"):
                since = f" ({seconds_text(round(fact.seconds))} so far)" if fact.seconds >= 1 else ""
                return self._changed("run", f"{fact.reason}{since}", is_waiting=True)
            case events.MemberChanged(has_joined=True):
                # A present member may have more state than this seed.
                is_first = any(line.detail == WAITING_FIRST for line in self.lines)
                return self._changed("state", "") if is_first else self
            case Fetched(is_done=False):
                left = fact.time_left
                return self._changed(
                    "state", f"{share_text(fact.share)} of {bytes_text(fact.total_bytes)}, {left} left"
                )
            case Fetched() if fact.names:
                return self._changed("run", f"found, with {plural(len(fact.names), 'file')}", is_done=True)
            case Fetched():
                told = f"{bytes_text(fact.num_bytes)} from {plural(len(fact.donors) or 1, 'member')}"
                return self._changed("state", told, is_done=True)
            case events.JoinedRun():
                return replace(self, is_over=True)
        return self

    def _changed(self, name: StepName, detail: str, *, is_done: bool = False, is_waiting: bool = False) -> Checklist:
        known = {line.name: line for line in self.lines}
        if name not in known or (known[name].is_done and not is_done):
            return self
        changed = replace(known[name], detail=detail, is_begun=True, is_done=is_done, is_waiting=is_waiting)
        return replace(self, lines=tuple(changed if line.name == name else line for line in self.lines))
