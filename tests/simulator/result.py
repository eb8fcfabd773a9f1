"""What a simulation found, as values and as text. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dht.ground.quantities import bytes_text, count_text, plural, seconds_text

MAX_SHOWN_VIOLATIONS = 20


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The peers of one group.

    Attributes:
        num_started: those that were there at any time.
        bytes_up, bytes_down: mean per peer that was there.
        bytes_abroad: mean per peer of the sent bytes that went to another site.
        share_of_rounds: of the committed rounds during which its peers trained, the part that they were in.
    """

    name: str
    site: str
    num_peers: int
    num_started: int
    inner_steps: int
    tokens: int
    bytes_up: float
    bytes_down: float
    bytes_abroad: float
    share_of_rounds: float


@dataclass(frozen=True, slots=True)
class Durations:
    """Median and 90th percentile, seconds; None when there was nothing to measure."""

    median: float | None
    p90: float | None

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Durations:
        """Of any number of durations."""
        if not seconds:
            return cls(None, None)
        ordered = sorted(seconds)
        return cls(statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))])


@dataclass(frozen=True, slots=True)
class LossPoint:
    """Validation loss of the heaviest anchors at a virtual time."""

    hours: float
    loss: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What happened. `violations` is empty when every invariant held.

    Attributes:
        rounds_committed: different (fragment, version, members) that anybody saw committed.
        rounds_failed: different (fragment, version, attempt) that anybody gave up.
        round_seconds: from a plan to its commit, over all members of all rounds.
        wait_seconds: from an offer to the commit, over all contributors of all rounds.
        staleness: versions late -> number of contributions sent.
        goodput: tokens in the final anchors' commits / tokens computed, mean over fragments.
        loss_first, loss_last: validation loss of the initial parameters and of the final anchors (nats per token, or
            the value of the quadratic); `losses` between them.
        versions: final anchor version per fragment.
        refusals: reason -> how often any peer refused another one or something of it.
        trace_hash: SHA-256 over all events in order, without what comes from tensors; see `tests.simulator.trace`.
    """

    num_peers: int
    num_live_peers: int
    seed: int
    inner_steps: int
    tokens: int
    rounds_committed: int
    rounds_failed: int
    round_seconds: Durations
    wait_seconds: Durations
    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]
    groups: tuple[GroupResult, ...]
    staleness: Mapping[int, int]
    goodput: float
    losses: tuple[LossPoint, ...]
    loss_first: float
    loss_last: float
    anchors_equal: bool
    versions: tuple[int, ...]
    refusals: Mapping[str, int]
    events: Mapping[str, int]
    trace_hash: str
    virtual_seconds: float
    real_seconds: float
    violations: tuple[str, ...] = field(default=())


def summary_of(result: SimulationResult) -> str:
    """The result for people, on about thirty lines."""
    late = ", ".join(f"{count} x {versions}" for versions, count in result.staleness.items())
    lines = [
        f"{plural(result.num_peers, 'peer')}, seed {result.seed}: {seconds_text(result.virtual_seconds)} of virtual "
        f"time in {seconds_text(result.real_seconds)}",
        f"  training   {count_text(result.inner_steps)} inner steps, {count_text(result.tokens)} tokens, "
        f"goodput {result.goodput:.1%}",
        f"  rounds     {result.rounds_committed} committed, {result.rounds_failed} attempts given up; "
        f"versions {' '.join(map(str, result.versions))}",
        f"  per round  {_durations_text(result.round_seconds)} from plan to commit; "
        f"{_durations_text(result.wait_seconds)} from offer to commit",
        f"  staleness  {late or 'nothing was sent'} (contributions x versions late)",
        "  group            peers  rounds  up/peer  down/peer  abroad/peer  tokens",
    ]
    for group in result.groups:
        place = f"{group.name}, {group.site}" if group.site else group.name
        lines.append(
            f"    {place[:14]:14} {group.num_started:5}  {group.share_of_rounds:6.1%} {bytes_text(group.bytes_up):>8} "
            f"{bytes_text(group.bytes_down):>10} {bytes_text(group.bytes_abroad):>12} {count_text(group.tokens):>7}"
        )
    lines += [f"  loss       {result.loss_first:.4g} -> {result.loss_last:.4g}, held out, on the anchor"]
    if result.losses:
        shown = result.losses[:: max(1, len(result.losses) // 8)]
        lines.append("    at hour  " + " ".join(f"{point.hours:8.2f}" for point in shown))
        lines.append("    loss     " + " ".join(f"{point.loss:8.4g}" for point in shown))
    for reason, count in sorted(result.refusals.items(), key=lambda item: (-item[1], item[0])):
        lines.append(f"  refused    {count} x {reason}")
    state = "equal" if result.anchors_equal else "DIFFERENT"
    lines += [
        f"  anchors    {state} on {plural(result.num_live_peers, 'live peer')}",
        f"  trace      {result.trace_hash}",
    ]
    if not result.violations:
        return "\n".join([*lines, "  every invariant held"])
    lines.append(f"  {plural(len(result.violations), 'violation')}; `--seed {result.seed}` replays:")
    lines += [f"    - {sentence}" for sentence in result.violations[:MAX_SHOWN_VIOLATIONS]]
    if len(result.violations) > MAX_SHOWN_VIOLATIONS:
        lines.append(f"    - and {len(result.violations) - MAX_SHOWN_VIOLATIONS} more; --json has them all")
    return "\n".join(lines)


def _durations_text(durations: Durations) -> str:
    if durations.median is None or durations.p90 is None:
        return "nothing measured"
    return f"{durations.median:.2f} s (90 %: {durations.p90:.2f} s)"
