"""What a view is told beside events and notes: how far loading is, what run this is, what its owner wants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peer.view.swarm_seen import OwnAddresses, SwarmSeen

StepName = Literal["key", "program", "run", "model", "state"]


@dataclass(frozen=True, slots=True)
class LoadingStep:
    """One line of the checklist begins, gets on or is done."""

    name: StepName
    detail: str = ""
    """A few words: what was found, or what it waits for."""
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the signed manifest says to people.

    Attributes:
        goal_tokens: of the swarm, at which the schedule ends; None: it has no end.
        page: address of the run's page, without a slash at its end; empty: nobody named one.
        flags_to_bring: see `RunManifest.flags_to_bring`.
        loss_unit: of each loss; empty: the run's own code decides.
    """

    run_id: str
    goal_tokens: int | None = None
    page: str = ""
    is_private: bool = False
    """Only members with an invite or on a list get in."""
    loss_unit: str = "nats per token"
    flags_to_bring: str = ""

    @property
    def name(self) -> str:
        """The run's name without the fingerprint of its owner."""
        return self.run_id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class LineLimits:
    """Most Mbit/s that the owner lets this peer send and receive; None: what the line carries."""

    up_mbit: float | None = None
    down_mbit: float | None = None


@dataclass(frozen=True, slots=True)
class Resting:
    """The owner paused training, or goes on."""

    is_resting: bool


@dataclass(frozen=True, slots=True)
class Compiling:
    """The first step is being compiled, or that failed and training goes on without."""

    is_compiling: bool
    text = "--compile: the first step is being compiled, which can take minutes"


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence for the owner that is soon of no use; a warning is a note."""

    text: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """The owner wants to leave; the text is what is still done first."""

    text: str


@dataclass(frozen=True, slots=True)
class EndedForGood:
    """This peer ends for a reason that the next start would meet again: revoked, too old, or with the wrong files."""


ViewUpdate = (
    Remark
    | LoadingStep
    | RunFacts
    | LineLimits
    | Resting
    | Compiling
    | Leaving
    | EndedForGood
    | SwarmSeen
    | OwnAddresses
)

Action = Literal["leave", "rest"] | LineLimits
"""What the person at the keys wants."""
