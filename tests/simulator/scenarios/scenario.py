"""What a scenario file holds: groups of peers, what goes wrong, what they learn. Read strictly, as a manifest is.

Each field has its default and meaning here.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from dht.ground.errors import UsageFault
from dht.ground.quantities import plural, seconds_text
from peer.config.manifest import AveragingSection
from peer.config.model_section import ModelSection
from peer.config.section import MAX_WHOLE_NUMBER, Section
from peer.config.training_section import TrainingSection
from peer.config.validation_sentences import explain, read_toml, shown
from tests.simulator.scenarios.spec import LieKind, WorkloadSection

SHIPPED = ("home", "datacenters", "storm", "laptops")
"""Shipped scenarios, in the order of `--list`."""
MAX_PEERS = 4096


def _range_within(low: float, high: float) -> Callable[[Any], tuple[float, float]]:
    """Reads a number, or a list [lowest, highest] of two, both from `low` to `high`."""

    def read(value: Any) -> tuple[float, float]:
        bounds = [value, value] if type(value) in (int, float) else value
        is_pair = type(bounds) in (list, tuple) and len(bounds) == 2
        if not is_pair or not all(type(bound) in (int, float) for bound in bounds):
            raise ValueError(f"got {shown(value)}; expected a number, or [lowest, highest]")
        first, last = float(bounds[0]), float(bounds[1])
        if not low <= first <= last <= high:
            raise ValueError(f"got {shown(value)}; expected from {low:g} to {high:g}, the lowest first")
        return first, last

    return read


Minutes = Annotated[tuple[float, float], BeforeValidator(_range_within(0, 100_000))]
Seconds = Annotated[tuple[float, float], BeforeValidator(_range_within(0.001, 3600))]
Skew = Annotated[tuple[float, float], BeforeValidator(_range_within(-3600, 3600))]
MegabitsPerSecond = Annotated[tuple[float, float], BeforeValidator(_range_within(0.01, 400_000))]
Milliseconds = Annotated[tuple[float, float], BeforeValidator(_range_within(0, 60_000))]
TokensPerSecond = Annotated[tuple[float, float], BeforeValidator(_range_within(0.001, 1e9))]


class ScenarioNetwork(Section):
    """The network between the peers, apart from their own lines."""

    announce_seconds: float = Field(default=10.0, ge=1, le=600, description="between two records of one peer")
    record_delay_seconds: float = Field(
        default=0.5, ge=0, le=600, description="until the others see a record that was published"
    )
    same_site_latency_ms: float | None = Field(
        default=None,
        ge=0,
        le=60_000,
        description="one way, between two peers of one site; absent: the sum of both, as between any two",
    )


class GroupSection(Section):
    """Peers of one kind. Each peer draws its own values from the ranges."""

    count: int = Field(ge=1, le=MAX_PEERS, description="peers")
    site: str = Field(
        default="",
        max_length=40,
        description="where they are; bytes between two sites are counted apart",
    )
    upload_mbit_per_second: MegabitsPerSecond = Field(default=(20.0, 20.0), description="of the line")
    download_mbit_per_second: MegabitsPerSecond | None = Field(
        default=None, description="of the line; absent: five times the upload"
    )
    latency_ms: Milliseconds = Field(
        default=(5.0, 40.0), description="one way to the middle of the network; two peers are apart by the sum of both"
    )
    stream_loss: float = Field(
        default=0.0, ge=0, le=1, description="probability that a stream breaks soon after this peer opened it"
    )
    step_seconds: Seconds | None = Field(default=None, description="time of one inner step; absent: 1 second")
    tokens_per_second: TokensPerSecond | None = Field(default=None, description="instead of step_seconds")
    joins_at_minute: Minutes = Field(default=(0.0, 0.1), description="when the peer first starts")
    leaves_at_minute: Minutes | None = Field(default=None, description="when it says goodbye for good; absent: stays")
    online_minutes: Minutes | None = Field(
        default=None, description="how long it is there before it says goodbye and pauses; absent: no pauses"
    )
    offline_minutes: Minutes | None = Field(default=None, description="length of those pauses")
    awake_minutes: Minutes | None = Field(
        default=None,
        description="how long it runs before its machine falls asleep, without a word; absent: it never does",
    )
    asleep_minutes: Minutes | None = Field(default=None, description="length of that sleep; its clocks go on")
    crashes_per_hour: float = Field(
        default=0.0, ge=0, le=3600, description="mean number of sudden deaths per peer and hour that it is there"
    )
    returns_after_minutes: Minutes | None = Field(
        default=None, description="from a crash to the new start with the same key; absent: it never returns"
    )
    network_crashes_per_hour: float = Field(
        default=0.0, ge=0, le=3600, description="mean number of deaths of the network process alone, per peer and hour"
    )
    clock_skew_seconds: Skew = Field(default=(0.0, 0.0), description="of the wall clock, ahead when positive")
    lie: LieKind | None = Field(
        default=None,
        description="what these peers do to the others, see the kinds below; absent: nothing, they are honest",
    )
    num_keys: int = Field(
        default=0, ge=0, le=MAX_PEERS, description="records of further keys that each of these hostile peers publishes"
    )
    lie_scale: float = Field(
        default=10.0,
        gt=0,
        le=1e9,
        description="how large the lie is, in honest lengths (forged_tokens: in honest counts; wrong_mean: in honest "
        "means)",
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.step_seconds is not None and self.tokens_per_second is not None:
            raise ValueError("step_seconds and tokens_per_second are given together; expected one of them")
        for there, away in (("online_minutes", "offline_minutes"), ("awake_minutes", "asleep_minutes")):
            minutes = getattr(self, there)
            if (minutes is None) != (getattr(self, away) is None):
                raise ValueError(f"one of {there} and {away} is given; expected both or none")
            if minutes is not None and minutes[0] <= 0:
                raise ValueError(f"{there} begins at 0; expected a time above 0")
        if self.leaves_at_minute is not None and self.leaves_at_minute[0] < self.joins_at_minute[1]:
            raise ValueError(
                f"leaves_at_minute begins at {self.leaves_at_minute[0]:g}, joins_at_minute ends at "
                f"{self.joins_at_minute[1]:g}; expected peers to join before they leave"
            )
        return self


class _WindowSection(Section):
    groups: list[str] = Field(min_length=1, description="names of groups")
    from_minute: float = Field(ge=0, le=100_000, description="when it begins")
    to_minute: float = Field(gt=0, le=100_000, description="when it ends")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.to_minute <= self.from_minute:
            raise ValueError(
                f"to_minute is {self.to_minute:g} with from_minute {self.from_minute:g}; expected a later minute"
            )
        return self


class PartitionSection(_WindowSection):
    """For a time `groups` cannot reach the others, nor be reached. Only one partition at a time."""


class StallSection(_WindowSection):
    """For a time nothing passes to or from peers of `groups`, though their streams stay open."""

    num_peers: int | None = Field(default=None, ge=1, le=MAX_PEERS, description="of each group; absent: all")


class Scenario(Section):
    """One scenario file."""

    description: str = Field(default="", max_length=500, description="one line for people")
    seed: int = Field(default=0, ge=0, le=MAX_WHOLE_NUMBER, description="of everything random; `--seed` beats it")
    duration_minutes: float = Field(default=30.0, ge=0.1, le=10_080, description="virtual time of training")
    settle_minutes: float = Field(
        default=3.0, ge=0.1, le=600, description="at most, after training, until all anchors must be equal"
    )
    workload: WorkloadSection = WorkloadSection()
    averaging: AveragingSection = AveragingSection()
    network: ScenarioNetwork = ScenarioNetwork()
    model: ModelSection | None = Field(default=None, description="gpt: as in a manifest; absent: a tiny one")
    training: TrainingSection | None = Field(default=None, description="gpt: as in a manifest; absent: a fitting one")
    groups: dict[str, GroupSection] = Field(min_length=1, description="one table for each kind of peer")
    partitions: dict[str, PartitionSection] = Field(default={}, description="one table for each split")
    stalls: dict[str, StallSection] = Field(default={}, description="one table for each silence")

    @property
    def num_peers(self) -> int:
        return sum(group.count for group in self.groups.values())

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.num_peers > MAX_PEERS:
            raise ValueError(f"groups have {self.num_peers} peers together; expected at most {MAX_PEERS}")
        windows: list[tuple[str, str, _WindowSection]] = [
            *(("partitions", name, window) for name, window in self.partitions.items()),
            *(("stalls", name, window) for name, window in self.stalls.items()),
        ]
        for kind, name, window in windows:
            unknown = [group for group in window.groups if group not in self.groups]
            if unknown:
                raise ValueError(
                    f"{kind}.{name}.groups names {shown(unknown[0])}; expected one of {', '.join(self.groups)}"
                )
            if window.to_minute > self.duration_minutes:
                raise ValueError(
                    f"{kind}.{name}.to_minute is {window.to_minute:g} with duration_minutes "
                    f"{self.duration_minutes:g}; expected an end within the duration"
                )
        by_time = sorted(self.partitions.items(), key=lambda item: item[1].from_minute)
        for (first, earlier), (second, later) in pairwise(by_time):
            if later.from_minute < earlier.to_minute:
                raise ValueError(
                    f"partitions.{second}.from_minute is {later.from_minute:g} while partitions.{first} lasts until "
                    f"{earlier.to_minute:g}; expected one partition at a time"
                )
        if self.workload.kind == "quadratic" and (self.model is not None or self.training is not None):
            raise ValueError("model and training are given with workload.kind 'quadratic'; expected kind 'gpt'")
        if self.model is not None and self.model.kind != "gpt":
            raise ValueError(f"model.kind is {self.model.kind!r}; expected 'gpt'")
        if self.workload.num_values < self.averaging.num_fragments:
            raise ValueError(
                f"workload.num_values is {self.workload.num_values} with averaging.num_fragments "
                f"{self.averaging.num_fragments}; expected at least one value in each fragment"
            )
        return self


def load_scenario(name_or_path: str) -> Scenario:
    """A shipped scenario by its name, or a TOML file by its path.

    Raises:
        UsageFault: no such scenario or file, not TOML, or a field is unknown, missing or wrong; the message names it.
    """
    path = Path(str(files("tests.simulator.scenarios"))) / f"{name_or_path}.toml"
    if name_or_path not in SHIPPED:
        path = Path(name_or_path)
        if path.suffix != ".toml" and not path.exists():
            near = difflib.get_close_matches(name_or_path, SHIPPED, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UsageFault(
                f"{shown(name_or_path)} is not a scenario; expected {', '.join(SHIPPED)} or the path of a TOML "
                f"file.{hint}"
            )
    fields = read_toml(path)
    try:
        return Scenario.model_validate(fields)
    except ValidationError as error:
        raise UsageFault(f"{path}: {explain(error, Scenario)}") from error


def list_scenarios(as_json: bool) -> int:
    """Print the scenarios that ship with the simulator."""
    found = {name: load_scenario(name) for name in SHIPPED}
    if as_json:
        print(json.dumps({name: scenario.description for name, scenario in found.items()}))
        return 0
    for name, scenario in found.items():
        length = seconds_text(60 * scenario.duration_minutes)
        print(f"{name:12} {plural(scenario.num_peers, 'peer')}, {length}: {scenario.description}")
    return 0
