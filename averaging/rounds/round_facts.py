"""Facts about rounds; `sentence` tells the peer's owner what each of them means.

Round machines return facts among their effects, and the exchange adds others. `peer.events.event_log` writes them:
class name and fields are the JSON of the log.

`version` is the version that the round starts from (it takes the fragment to ``version + 1``). In `AppliedCommit` and
`WorkLost` it is the version that the peer has now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from averaging.wire.messages import Commit
from dht.ground.host import PeerId
from dht.ground.quantities import bytes_text, count_text, plural, seconds_text, short_peer


class Effect:
    """What a round machine asks for, or, as a `Fact`, what happened."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Fact(Effect):
    """Base of everything that is written into the event log."""

    def sentence(self) -> str:
        """One plain sentence, without the time and the reporter."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OfVersion(Fact):
    """What happened to one fragment at one version."""

    fragment: int
    version: int


def bare(reason: str) -> str:
    """To be put into a sentence."""
    return reason.strip().rstrip(".")


def _peers(peer_ids: tuple[PeerId, ...]) -> str:
    names = ", ".join(short_peer(peer_id) for peer_id in peer_ids[:4])
    return f"{names} and {len(peer_ids) - 4} others" if len(peer_ids) > 4 else names or "members that do not answer"


@dataclass(frozen=True, slots=True)
class SentContribution(OfVersion):
    """This peer sent its work to a round."""

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
    """A leader's plan arrived."""

    leader: PeerId
    num_contributors: int

    def sentence(self) -> str:
        return (
            f"A round for version {self.version + 1} of fragment {self.fragment} started with "
            f"{plural(self.num_contributors, 'peer')}, led by {short_peer(self.leader)}."
        )


@dataclass(frozen=True, slots=True)
class RoundCommitted(OfVersion):
    """A round closed.

    `bytes_up` and `bytes_down` are the bytes of this peer's contribution (offers included) and of the results that it
    received, with framing; `contribution_values_sent` and `result_values_received` are the values in them. All of these
    and `seconds` are 0 when this peer's work was not in the round.
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
        """Whether this peer's work is in it."""
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
    """An attempt at a round ended without a commit; its work is kept.

    `new_leader` took over with the next attempt; None: `old_leader` gave the attempt up.
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
    """A round waits for `members`, or waited for them in vain.

    `awaited` is "offer", "contribution", "result", "first mean" (of any reducer) or "mean" (of all reducers) when a
    wait of `seconds` has ended. It is "quorum" when a round that this peer leads has `num_offers` of `quorum` offers
    and waits at most `seconds` more.
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
            "offer": "the round began without",
            "contribution": "its shard was averaged without",
            "first mean": "as giving up would send everything again, they get as long once more",
            "mean": "those shards are void and their work goes to the next round",
            "result": "another holder is asked for it",
        }.get(self.awaited, "the round went on")
        return (
            f"Waited {seconds_text(self.seconds)} for the {self.awaited} of {_peers(self.members)} to version "
            f"{self.version + 1} of fragment {self.fragment}: {consequence}."
        )


@dataclass(frozen=True, slots=True)
class AppliedCommit(OfVersion):
    """This peer's anchor moved to `version`, by a commit or a download; `digest` is hexadecimal."""

    digest: str

    def sentence(self) -> str:
        return f"Applied version {self.version} of fragment {self.fragment} (digest {self.digest[:8]})."


@dataclass(frozen=True, slots=True)
class WorkReturned(OfVersion):
    """Sent work was not committed and returned to the error feedback; nothing is lost."""

    reason: str
    num_values: int

    def sentence(self) -> str:
        return (
            f"Work on fragment {self.fragment} ({plural(self.num_values, 'value')}) came back from version "
            f"{self.version + 1}: {bare(self.reason)}; the next send carries it."
        )


@dataclass(frozen=True, slots=True)
class WorkLost(OfVersion):
    """This peer gave up work of `tokens`.

    `cause` is "late" when the work is older than the run's staleness limit, "fork" when another anchor replaced the one
    that had the work, and "withheld" when no training produces such work, so the peer did not send it and reset the
    fragment to its anchor. `staleness` belongs to "late", `reason` to "withheld".
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
                f"Withheld {work} and put its parameters back on the anchor: {bare(self.reason)}. A bit may have "
                "flipped in this machine's memory, or training diverged; if it comes again, test the memory or lower "
                "the learning rate."
            )
        return f"Gave up {work}: the other members' version {self.version} replaced the one that had it."


# ------------------------------------------------------------------------------- for the owner of the exchange alone


@dataclass(frozen=True, slots=True)
class CommitTaken:
    """What the owner of an exchange learns of a commit that was applied, beside `RoundCommitted`.

    Attributes:
        own_included: whether own work is in its roster.
        receive_seconds: until its results were here; then it was applied in `apply_seconds`.
    """

    commit: Commit
    own_included: bool
    receive_seconds: float
    apply_seconds: float


@dataclass(frozen=True, slots=True)
class RepairNeeded:
    """The fragment must be fetched from the swarm; `Applying.looked_into` ends it."""

    fragment: int
    version: int
    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """Something a remote sent was refused, or (`is_left_out`) it is left out of rounds for a while from now on.

    Attributes:
        counts: (offence, how often) of that remote since it was last forgiven, this one included.
        left_out_seconds: how long from now on.
    """

    peer_id: PeerId
    reason: str
    left_out_seconds: float = 0.0
    counts: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    @property
    def is_left_out(self) -> bool:
        return self.left_out_seconds > 0


Report = Fact | CommitTaken | RepairNeeded | PeerRefused
"""What an exchange reports to its owner."""
