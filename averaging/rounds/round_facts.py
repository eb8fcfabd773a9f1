"""Facts about rounds; `sentence` explains a fact to the peer's owner.

Round machines return facts among their effects, and the exchange adds more. `peer.events.event_log` writes each fact
as JSON: the class name and the fields.

`version` is the fragment's version before the round; a commit moves the fragment to ``version + 1``. In `AppliedCommit`
and `WorkLost`, `version` is the version that this peer has now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from averaging.wire.messages import Commit
from dht.ground.host import PeerId
from dht.ground.quantities import bytes_text, count_text, plural, seconds_text, short_peer


@dataclass(frozen=True, slots=True)
class Fact:
    """Base class of all entries of the event log."""

    def sentence(self) -> str:
        """Return the fact as one sentence, without the time and the reporting peer."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OfVersion(Fact):
    """A fact about one fragment at one version."""

    fragment: int
    version: int


def bare(reason: str) -> str:
    """Return the reason without its full stop, so that it fits inside a sentence."""
    return reason.strip().rstrip(".")


def _peers(peer_ids: tuple[PeerId, ...]) -> str:
    names = ", ".join(short_peer(peer_id) for peer_id in peer_ids[:4])
    return f"{names} and {len(peer_ids) - 4} others" if len(peer_ids) > 4 else names or "members that do not answer"


@dataclass(frozen=True, slots=True)
class SentContribution(OfVersion):
    """This peer sent a contribution to a round.

    The contribution is `num_bytes` bytes of encoded work from `steps` inner steps on `tokens` tokens. `staleness` is
    the number of versions by which the work is late.
    """

    num_bytes: int
    tokens: int
    steps: int
    staleness: int

    def sentence(self) -> str:
        late = f", {plural(self.staleness, 'version')} late" if self.staleness else ""
        return (
            f"Sent {plural(self.steps, 'step')} of work on fragment {self.fragment} for version {self.version + 1} "
            f"({bytes_text(self.num_bytes)}, {count_text(self.tokens)} tokens{late})."
        )


@dataclass(frozen=True, slots=True)
class RoundStarted(OfVersion):
    """A round started: the plan of its leader reached this peer."""

    leader: PeerId
    num_contributors: int

    def sentence(self) -> str:
        return (
            f"A round for version {self.version + 1} of fragment {self.fragment} started with "
            f"{plural(self.num_contributors, 'peer')}, led by {short_peer(self.leader)}."
        )


@dataclass(frozen=True, slots=True)
class RoundCommitted(OfVersion):
    """A round ended with a commit.

    `bytes_up` counts the bytes of this peer's contribution and offers, `bytes_down` the bytes of the results that this
    peer received; both include framing. `contribution_values_sent` and `result_values_received` count the values in
    those messages. These four fields and `seconds` are 0 if the round did not include this peer's work.
    """

    contributors: tuple[PeerId, ...]
    outer_lr: float
    tokens: int
    num_void_shards: int
    seconds: float
    bytes_up: int
    bytes_down: int
    contribution_values_sent: int
    result_values_received: int

    @property
    def has_own_work(self) -> bool:
        """Whether the round included this peer's work."""
        return self.seconds > 0

    def sentence(self) -> str:
        void = f", {plural(self.num_void_shards, 'shard')} void" if self.num_void_shards else ""
        moved = (
            f" in {seconds_text(self.seconds)}, {bytes_text(self.bytes_up)} up, {bytes_text(self.bytes_down)} down"
            if self.has_own_work
            else ""
        )
        return (
            f"Fragment {self.fragment} reached version {self.version + 1}: {count_text(self.tokens)} tokens "
            f"from {plural(len(self.contributors), 'peer' if self.has_own_work else 'other peer')}{moved}{void}."
        )


@dataclass(frozen=True, slots=True)
class AttemptEnded(OfVersion):
    """An attempt at a round ended without a commit; the work of the attempt is kept.

    `new_leader` leads the next attempt. If `new_leader` is null, `old_leader` gave up the attempt.
    """

    attempt: int
    reason: str
    old_leader: PeerId
    new_leader: PeerId | None = None

    def sentence(self) -> str:
        if self.new_leader is None:
            return (
                f"Gave up attempt {self.attempt + 1} at version {self.version + 1} of fragment {self.fragment}: "
                f"{bare(self.reason)}; the work goes to the next round."
            )
        return (
            f"Peer {short_peer(self.new_leader)} took over version {self.version + 1} of fragment {self.fragment} from "
            f"{short_peer(self.old_leader)}: {bare(self.reason)}."
        )


@dataclass(frozen=True, slots=True)
class MembersAwaited(OfVersion):
    """A round is waiting for `members`, or stopped waiting for them.

    `awaited` is "quorum" while a round that this peer leads has `num_offers` of the `quorum` offers that it needs, and
    waits at most `seconds` more. Otherwise the round waited `seconds` and did not receive the `awaited` message: an
    "offer", a "contribution", a "result", the "first mean" (from any reducer) or a "mean" (from each reducer).
    """

    awaited: str
    members: tuple[PeerId, ...]
    seconds: float
    num_offers: int = 0
    quorum: int = 0

    def sentence(self) -> str:
        if self.awaited == "quorum":
            return (
                f"Version {self.version + 1} of fragment {self.fragment} has {self.num_offers} of {self.quorum} "
                f"offers; waiting for {_peers(self.members)}, at most {seconds_text(self.seconds)} more."
            )
        consequence = {
            "offer": "the round began without them",
            "contribution": "the shard was averaged without them",
            "first mean": "they get the same time again, because giving up would resend everything",
            "mean": "those shards are void and their work goes to the next round",
            "result": "this peer asks another holder",
        }.get(self.awaited, "the round went on")
        return (
            f"Waited {seconds_text(self.seconds)} for the {self.awaited} of {_peers(self.members)} for version "
            f"{self.version + 1} of fragment {self.fragment}: {consequence}."
        )


@dataclass(frozen=True, slots=True)
class AppliedCommit(OfVersion):
    """This peer's anchor moved to `version` by a commit or a download; `digest` is the anchor digest (hexadecimal)."""

    digest: str

    def sentence(self) -> str:
        return f"Applied version {self.version} of fragment {self.fragment} (digest {self.digest[:8]})."


@dataclass(frozen=True, slots=True)
class WorkReturned(OfVersion):
    """A round did not commit work that this peer had sent.

    This peer added the `num_values` values to its error feedback, so the next contribution includes them.
    """

    reason: str
    num_values: int

    def sentence(self) -> str:
        return (
            f"Work on fragment {self.fragment} ({plural(self.num_values, 'value')}) was not committed in version "
            f"{self.version + 1}: {bare(self.reason)}; the next send includes it."
        )


@dataclass(frozen=True, slots=True)
class WorkLost(OfVersion):
    """This peer discarded work covering `tokens` tokens.

    `cause` is "late" if the work was `staleness` versions late, more than the run's limit. It is "fork" if a different
    anchor replaced the anchor that included the work. It is "withheld" if training cannot have produced the work
    (`reason`): this peer did not send the work, and reset the fragment to its anchor.
    """

    tokens: int
    cause: str
    staleness: int = 0
    reason: str = ""

    def sentence(self) -> str:
        work = f"work of {count_text(self.tokens)} tokens on fragment {self.fragment}"
        if self.cause == "late":
            return f"Dropped {work}: it was {plural(self.staleness, 'version')} late, more than the run allows."
        if self.cause == "withheld":
            return (
                f"Withheld {work} and reset its parameters to the anchor: {bare(self.reason)}. A bit may have flipped "
                "in this machine's memory, or training diverged; if it happens again, test the memory or lower the "
                "learning rate."
            )
        return f"Gave up {work}: the other members' version {self.version} replaced the version that contained it."


# ------------------------------------------------------------------------------- for the owner of the exchange alone


@dataclass(frozen=True, slots=True)
class CommitTaken:
    """A commit that was applied, with details for the owner of the exchange that `RoundCommitted` lacks.

    Attributes:
        own_included: whether the commit's roster includes this peer.
        receive_seconds: time until all results had arrived.
        apply_seconds: time from then until the commit was applied.
    """

    commit: Commit
    own_included: bool
    receive_seconds: float
    apply_seconds: float


@dataclass(frozen=True, slots=True)
class RepairNeeded:
    """This peer must download the fragment from the swarm; `Applying.looked_into` ends this state."""

    fragment: int
    version: int
    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """This peer refused something that a remote sent; if `is_left_out`, rounds also exclude the remote for a while.

    Attributes:
        left_out_seconds: how long rounds exclude the remote, from now on.
        counts: (offence, number of times) since the remote was last forgiven, including this offence.
    """

    peer_id: PeerId
    reason: str
    left_out_seconds: float = 0.0
    counts: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    @property
    def is_left_out(self) -> bool:
        return self.left_out_seconds > 0


Report = Fact | CommitTaken | RepairNeeded | PeerRefused
"""Everything that an exchange reports to its owner."""
