"""The homes that a run is planned for: lines, speeds, and what is asked of them; read from a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from dht.ground.errors import UsageFault
from peer.config.peer_config import BaseBits, OptimizerBits, flag_of
from peer.config.section import Section
from peer.config.validation_sentences import explain, read_toml
from peer.plan.round_seconds import MemberLink

MAX_GROUPS = 32
"""More kinds of homes than anyone tells apart; the report has a row for each."""


class HomeGroup(Section):
    """Homes that are alike."""

    name: str = Field(
        default="home", pattern=r"^[^\p{C}]{1,40}$", examples=["a name of 1 to 40 characters"], description="a name"
    )
    count: int = Field(default=4, ge=1, le=1_000_000, description="peers of this kind")
    step_seconds: float = Field(default=1.0, ge=1e-6, le=1e6, description="of one inner step on this machine")
    upload_mbit_per_second: float = Field(default=20.0, ge=0.01, le=1e6, description="of the line, upwards")
    download_mbit_per_second: float = Field(default=100.0, ge=0.01, le=1e6, description="of the line, downwards")
    round_trip_seconds: float = Field(default=0.04, ge=0, le=60, description="ping between two members")
    reachable: bool = Field(default=True, description="whether others can dial it; if not, it reduces nothing")
    base_bits: BaseBits = Field(
        default="full", description="of given weights under an adapter, as `peer join --base-bits` has them"
    )
    optimizer_bits: OptimizerBits = Field(
        default="32", description="of AdamW's moments, as `peer join --optimizer-bits` has them"
    )

    @property
    def line(self) -> MemberLink:
        return MemberLink(
            1e6 * self.upload_mbit_per_second,
            1e6 * self.download_mbit_per_second,
            self.round_trip_seconds / 2,
            self.reachable,
        )


class Goal(Section):
    """What is looked for."""

    tokens: int = Field(
        default=10**9,
        ge=1,
        le=10**18,
        description="tokens of all peers together to plan for; one that is not named gives way to the run's own goal",
    )


class PlanProfile(Section):
    """All homes of a run; the defaults are four alike."""

    peers: tuple[HomeGroup, ...] = Field(
        default=(HomeGroup(),), min_length=1, max_length=MAX_GROUPS, description="groups of homes"
    )
    num_seeds: int = Field(default=0, ge=0, le=10_000, description="members that serve state and do not train")
    goal: Goal = Goal()

    @property
    def num_peers(self) -> int:
        return sum(group.count for group in self.peers)


def load_profile(path: Path | None) -> PlanProfile:
    """Read a profile; without a path, the default homes.

    Raises:
        UsageFault: the file cannot be read, is not TOML, or a field is wrong; the message names the field.
    """
    if path is None:
        return PlanProfile()
    fields = read_toml(path, "file of homes")
    if not fields:
        raise UsageFault(f"{path} sets no field; expected homes: [[peers]] before each kind, and its line.")
    groups = fields.get("peers")
    if isinstance(groups, list):
        # Strict validation takes no list where a tuple is meant, and TOML has no tuples.
        fields["peers"] = tuple(_checked_group(path, number, group) for number, group in enumerate(groups, 1))
    elif "peers" in fields:
        raise UsageFault(f"{path}: peers is no list of tables; expected [[peers]] before each kind of home.")
    try:
        return PlanProfile.model_validate(fields)
    except ValidationError as error:
        raise UsageFault(f"{path}: {explain(error, PlanProfile)}") from error


def with_bits(profile: PlanProfile, bits: Mapping[str, str | None]) -> PlanProfile:
    """The same homes, all of which have so many bits (field -> choice; None: as the profile says).

    Raises:
        UsageFault: there is no such choice.
    """
    try:
        chosen = {name: choice for name, choice in bits.items() if choice is not None}
        groups = [HomeGroup.model_validate(group.model_dump() | chosen) for group in profile.peers]
    except ValidationError as error:
        raise UsageFault(explain(error, HomeGroup, flag_of)) from error
    return profile.model_copy(update={"peers": tuple(groups)})


def _checked_group(path: Path, number: int, fields: object) -> HomeGroup:
    try:
        return HomeGroup.model_validate(fields)
    except ValidationError as error:
        raise UsageFault(f"{path}: peers table {number}: {explain(error, HomeGroup)}") from error
