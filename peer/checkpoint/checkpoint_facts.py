"""The content of a checkpoint's JSON files, with every field checked."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from averaging.outer.own_contributions import Sent
from averaging.wire.messages import WorkPart
from peer.checkpoint.checked_files import WrittenFile
from peer.config.section import Section

FORMAT_VERSION = 5
EARLIER_FORMAT = 4
"""Checkpoints of this format are also read, so that a software update loses no work."""

_COUNT = Field(ge=0, le=2**63 - 1)
_HASH = Field(pattern="^[0-9a-f]{64}$")


class ContributionFacts(Section):
    """Own work that was being sent."""

    sequence: int = _COUNT
    tokens: int = _COUNT
    steps: int = _COUNT
    base_version: int = _COUNT
    parts: tuple[WorkPart, ...] = ()


class FragmentFacts(Section):
    """The facts about one fragment in `checkpoint.json`. `digest` is the digest of (anchor, momentum)."""

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


class Totals(Section):
    """This peer's totals in the run, including earlier sessions."""

    inner_steps: int = Field(default=0, ge=0, le=2**63 - 1)
    tokens: int = Field(default=0, ge=0, le=2**63 - 1)
    rounds_contributed: int = Field(default=0, ge=0, le=2**63 - 1)
    run_tokens: int = Field(default=0, ge=0, le=2**63 - 1)
    """The run's clock as last seen by this peer."""


class Metadata(Section):
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
    """The part of `trainer.json` that identifies the checkpoint; the rest belongs to the trainer."""

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
"""Fields of `FragmentFacts` with the same names as in `averaging.outer.own_contributions.OwnWork`."""


OF_SENT = ("sequence", "tokens", "steps", "base_version", "parts")
"""Fields of `ContributionFacts` with the same names as in `averaging.outer.own_contributions.Sent`."""


def contribution_facts(sent: Sent) -> ContributionFacts:
    return ContributionFacts(**{name: getattr(sent, name) for name in OF_SENT})


def upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """Convert the content of a `checkpoint.json` of `EARLIER_FORMAT` to the current format, without checking it.

    That format also counted rounds of each fragment and reads of the data. Its signed commits may be in separate files,
    see `peer.checkpoint.kept_commits.earlier_commits`.
    """
    totals, fragments = content.get("totals"), content.get("fragments")
    if isinstance(totals, dict):
        totals = {name: value for name, value in totals.items() if name != "reads"}
    if isinstance(fragments, list) and all(isinstance(facts, dict) for facts in fragments):
        fragments = [{name: value for name, value in facts.items() if name != "num_rounds"} for facts in fragments]
    return content | {"format_version": FORMAT_VERSION, "totals": totals, "fragments": fragments}
