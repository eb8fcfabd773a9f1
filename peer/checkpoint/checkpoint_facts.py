"""What the JSON files of a checkpoint say, with every field checked."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from averaging.outer.own_contributions import Sent
from averaging.wire.messages import WorkPart
from peer.checkpoint.checked_files import WrittenFile

FORMAT_VERSION = 5
EARLIER_FORMAT = 4
"""Checkpoints of this format are read too: an update of the software costs no work."""

_COUNT = Field(ge=0, le=2**63 - 1)
_HASH = Field(pattern="^[0-9a-f]{64}$")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ContributionFacts(_Section):
    """Own work that was in flight."""

    sequence: int = _COUNT
    tokens: int = _COUNT
    steps: int = _COUNT
    base_version: int = _COUNT
    parts: tuple[WorkPart, ...] = ()


class FragmentFacts(_Section):
    """What `checkpoint.json` says of one fragment. `digest` is that of (anchor, momentum)."""

    num_values: int = _COUNT
    version: int = _COUNT
    lineage_tokens: int = _COUNT
    digest: str = _HASH
    unsent_tokens: int = _COUNT
    unsent_steps: int = _COUNT
    unsent_base_version: int = _COUNT
    unsent_parts: tuple[WorkPart, ...] = ()
    own_share: float = Field(ge=0, le=1)
    shown_share: float = Field(ge=0, le=1)
    contribution: ContributionFacts | None
    has_velocity: bool
    file: WrittenFile


class Totals(_Section):
    """What this peer has done in the run, earlier sessions included."""

    inner_steps: int = Field(default=0, ge=0, le=2**63 - 1)
    tokens: int = Field(default=0, ge=0, le=2**63 - 1)
    rounds_contributed: int = Field(default=0, ge=0, le=2**63 - 1)
    run_tokens: int = Field(default=0, ge=0, le=2**63 - 1)
    """The run's clock, as far as this peer has seen it."""


class Metadata(_Section):
    format_version: int
    number: int = _COUNT
    run_id: str
    peer_id: str
    manifest_hash: str = _HASH
    layout_digest: str = _HASH
    software: str
    is_last: bool
    totals: Totals
    fragments: tuple[FragmentFacts, ...]
    trainer: WrittenFile | None


class TrainerFile(BaseModel):
    """The part of `trainer.json` that says to what it belongs; the rest is the trainer's."""

    model_config = ConfigDict(frozen=True, strict=True)
    number: int = _COUNT
    inner_steps: int = _COUNT
    tokens: int = _COUNT
    file: WrittenFile


OF_OWN_WORK = (
    "unsent_tokens",
    "unsent_steps",
    "unsent_base_version",
    "unsent_parts",
    "own_share",
    "shown_share",
)
"""Fields of `FragmentFacts` that are those of `averaging.outer.own_contributions.OwnWork`."""


OF_SENT = ("sequence", "tokens", "steps", "base_version", "parts")
"""Fields of `ContributionFacts` that are those of `averaging.outer.own_contributions.Sent`."""


def contribution_facts(sent: Sent) -> ContributionFacts:
    return ContributionFacts(**{name: getattr(sent, name) for name in OF_SENT})


def upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `checkpoint.json` of `EARLIER_FORMAT` in the present one; nothing is checked yet.

    That format also counted rounds of each fragment and reads of the data. Its signed commits may be in separate files,
    see `peer.checkpoint.kept_commits.earlier_commits`.
    """
    totals, fragments = content.get("totals"), content.get("fragments")
    if isinstance(totals, dict):
        totals = {name: value for name, value in totals.items() if name != "reads"}
    if isinstance(fragments, list) and all(isinstance(facts, dict) for facts in fragments):
        fragments = [{name: value for name, value in facts.items() if name != "num_rounds"} for facts in fragments]
    return content | {"format_version": FORMAT_VERSION, "totals": totals, "fragments": fragments}
