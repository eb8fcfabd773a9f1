"""Updates of a view besides events and notes: progress of loading, facts about the run, the owner's requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peer.view.swarm_seen import OwnAddresses, SwarmSeen

StepName = Literal["key", "program", "run", "model", "state"]


@dataclass(frozen=True, slots=True)
class LoadingStep:
    """A step of loading: a line of the checklist. Begun but not done means in progress."""

    name: StepName
    detail: str = ""
    """A few words about the result, or the reason for waiting."""
    is_done: bool = False
    is_begun: bool = True
    is_waiting: bool = False
    """Whether the step waits for something outside this peer."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts from the signed manifest for people.

    Attributes:
        goal_tokens: the swarm's tokens at which the schedule ends; None: it has no end.
        page: address of the run's page, without a slash at its end; empty: none.
        flags_to_bring: see `RunManifest.flags_to_bring`.
        loss_unit: unit of each loss; empty: the run's own code decides.
    """

    run_id: str
    goal_tokens: int | None = None
    page: str = ""
    is_private: bool = False
    """Whether only members with an invite or on the list are admitted."""
    loss_unit: str = "nats per token"
    flags_to_bring: str = ""

    @property
    def name(self) -> str:
        """The run's name without the fingerprint of its owner."""
        return self.run_id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class LineLimits:
    """The owner's limits for sending and receiving, in Mbit/s; None: no limit."""

    up_mbit: float | None = None
    down_mbit: float | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence of short-lived interest for the owner; a warning is a note."""

    text: str


@dataclass(frozen=True, slots=True)
class Doing:
    """This peer's activity changed.

    Attributes:
        what: "paused" and "resumed" by the owner; "compiling" the first step, and "compiled" when that is done or has
            failed; "leaving", with the remaining work as `text`; "ended for good" for a reason that also affects the
            next start: revoked, too old, or with the wrong files.
    """

    what: Literal["paused", "resumed", "compiling", "compiled", "leaving", "ended for good"]
    text: str = ""

    @property
    def sentence(self) -> str:
        """The sentence for the owner; empty: none."""
        compiling = "--compile: the first step is being compiled, which can take minutes"
        return compiling if self.what == "compiling" else self.text


ViewUpdate = Remark | LoadingStep | RunFacts | LineLimits | Doing | SwarmSeen | OwnAddresses

Action = Literal["leave", "rest"] | LineLimits
"""The user's request."""
