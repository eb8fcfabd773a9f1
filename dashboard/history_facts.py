"""Values of a run's history. Pure: `history/` creates them; page, API and export show them.

Times are unix seconds. Ids and texts were checked and cleaned before; they are still escaped on display. `*_witnessed`
was signed by other members of the round, `*_reported` only by the peer itself (`docs/organiser/dashboard.md` has the
definitions).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Condition = Literal["here", "late", "silent", "left"]
"""`late` missed three announcements, `silent` let its record expire, `left` announced that it left."""
MarkKind = Literal["join", "leave", "revision", "note", "sample"]


class _InTokens:
    """Tokens of values in thousandths of a token."""

    __slots__ = ()
    milli_tokens_witnessed: int
    milli_tokens_reported: int

    @property
    def tokens_witnessed(self) -> float:
        return self.milli_tokens_witnessed / 1000

    @property
    def tokens_reported(self) -> float:
        return self.milli_tokens_reported / 1000


@dataclass(frozen=True, slots=True)
class MachineRow(_InTokens):
    """A machine (PeerId) of a contributor."""

    peer_id: str
    device: str
    condition: Condition
    milli_tokens_witnessed: int
    """Thousandths of a token, here and below."""
    rounds: int
    first_at: float
    last_at: float
    uptime_seconds: float
    """While this dashboard observed it; earlier uptime is unknown."""
    milli_tokens_reported: int = 0
    rounds_missed: int = 0


@dataclass(frozen=True, slots=True)
class ContributorRow(_InTokens):
    """A person, identified by a key; without a key, the machine itself."""

    contributor_id: str
    name: str
    """Empty: anonymous, or hidden."""
    country: str
    milli_tokens_witnessed: int
    milli_tokens_reported: int
    share: float
    """Share of all witnessed tokens, 0 to 1."""
    rounds: int
    rounds_missed: int
    """Rounds whose plan contained a machine of theirs but whose means do not."""
    first_at: float
    last_at: float
    is_here: bool
    machines: tuple[MachineRow, ...]
    rank: int = 0
    """From 1, by witnessed tokens; 0: nothing is witnessed."""
    team: str = ""
    """The team that the contributor states; empty: none, or hidden."""

    @property
    def num_machines(self) -> int:
        return len(self.machines)


@dataclass(frozen=True, slots=True)
class DayOfWork:
    """A contributor's witnessed work of one day."""

    day: int
    """Days since 1 January 1970 (UTC)."""
    milli_tokens_witnessed: int
    rounds: int


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """The run at one moment. Losses and rates are medians and sums of the reports of live trainers; bits per second are
    those of the last minute's rounds.
    """

    at: float
    tokens: int
    """Committed so far."""
    rounds: int
    validation_loss: float | None
    train_loss: float | None
    num_trainers: int
    num_peers: int
    tokens_per_second: float
    upload_bits_per_second: float


@dataclass(frozen=True, slots=True)
class ChartMark:
    """A mark beside the curves, for an event at `at`."""

    at: float
    committed_tokens: int
    kind: MarkKind
    peer_id: str = ""
    """The peer that arrived or left; empty for other marks."""
    who: str = ""
    """Name of that peer."""
    text: str = ""
    """The organiser's words, for a note."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without observations (its commits may have been fetched later)."""

    begin_at: float
    end_at: float
    reason: str
    """Reason in words."""


@dataclass(frozen=True, slots=True)
class MissingRounds:
    """Versions of a fragment whose commits no member had when this dashboard asked."""

    fragment: int
    first_version: int
    last_version: int
    """Inclusive; versions at which the missing rounds began."""


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """A closed round at `version` of `fragment`."""

    fragment: int
    version: int
    seen_at: float
    leader: str = ""
    """Empty: the round is known only from peer records."""
    tokens: int = 0
    contributors: tuple[str, ...] = ()
    """PeerIds of the members in the round."""
    num_missed: int = 0
    num_void_shards: int = 0
    drop_reasons: tuple[tuple[str, int], ...] = ()
    num_rounds: int = 1
    """Rounds since the last observed version: peer records only contain a peer's version when it writes the record."""


@dataclass(frozen=True, slots=True)
class TrafficTotals:
    """Bytes of encoded values sent between peers in all rounds with signed commits, without framing, retries and
    downloads of joiners.
    """

    upload_bytes: float = 0.0
    data_parallel_bytes: float | None = None
    """Bytes that the same inner steps would have uploaded with plain data-parallel training: float32 gradients, a ring
    of the round's members, each step. None: unknown."""

    @property
    def times_less(self) -> float | None:
        """How many times fewer bytes were uploaded than with plain data-parallel training; None: no comparison is
        possible.
        """
        if not self.data_parallel_bytes or self.upload_bytes <= 0:
            return None
        return self.data_parallel_bytes / self.upload_bytes


@dataclass(frozen=True, slots=True)
class WorkPoint:
    """A contributor's work up to one moment."""

    at: float
    tokens_witnessed: float
    """Total up to that moment."""
    tokens_reported: float
    rounds: int


@dataclass(frozen=True, slots=True)
class ContributorView:
    """A contributor's own page."""

    row: ContributorRow
    curve: tuple[WorkPoint, ...] = ()
    rounds: tuple[RoundFacts, ...] = ()
    """The newest rounds whose plan contained a machine of theirs, newest first."""
    num_ranked: int = 0
    """Contributors with a rank."""
    days: tuple[DayOfWork, ...] = ()
    """Days with a round, oldest first."""
    above: ContributorRow | None = None
    """The next better contributor in the ranking."""
    below: ContributorRow | None = None
    num_witnesses: int = 0
    """Number of others that signed for this work, in the rounds known here."""


@dataclass(frozen=True, slots=True)
class WrittenText:
    """The model's continuation of a prompt."""

    prompt: str
    """Empty: without a prompt."""
    text: str


@dataclass(frozen=True, slots=True)
class ModelSample:
    """The committed model's texts at one moment."""

    at: float
    """Time at which its anchors were taken."""
    version: int
    """Number of rounds in the anchors: the sum of all fragments' versions."""
    committed_tokens: int
    """Tokens committed into the anchors."""
    validation_loss: float | None
    """The newest loss known then, in the unit of the run's losses."""
    texts: tuple[WrittenText, ...]


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Score of the model in a task of lm-eval."""

    task: str
    metric: str
    value: float
    error: float | None
    """Standard error of the value; None: unknown."""
    num_samples: int
    committed_tokens: int
    """Tokens committed into the evaluated model."""
    version: int
    """Number of rounds in the model: the sum of all fragments' versions."""


@dataclass(frozen=True, slots=True)
class HistoryView:
    """The past as the page shows it besides `DashboardState`; all of it bounded."""

    now: float
    started_at: float
    """Time of the oldest entry in this history."""
    contributors: tuple[ContributorRow, ...] = ()
    """Ranked by witnessed tokens; contributors without any are last."""
    num_unverified: int = 0
    """Peers that no commit lists and that have no row in `contributors`."""
    points: tuple[HistoryPoint, ...] = ()
    """Oldest first, thinned to about a thousand over the whole history."""
    marks: tuple[ChartMark, ...] = ()
    rounds: tuple[RoundFacts, ...] = ()
    """Newest first."""
    bandwidth: TrafficTotals = TrafficTotals()
    gaps: tuple[Gap, ...] = ()
    missing: tuple[MissingRounds, ...] = ()
    num_rounds: int = 0
    """Number of rounds with signed commits in this history."""
    milli_tokens_witnessed: int = 0
    """Tokens of all contributors, in thousandths."""
    samples: tuple[ModelSample, ...] = ()
    """Oldest first."""
    scores: tuple[TaskScore, ...] = ()
    """Scores by tokens."""
    storage: str = ""
    """Storage of the history, in words."""
    problem: str = ""
    """Why the history is not stored at present, as a sentence; empty: it is stored."""
    searched: list[str] = field(init=False, default_factory=list, compare=False, repr=False)
    """Searchable text of each of `contributors`, filled by the first search."""

    @property
    def tokens_witnessed(self) -> float:
        return self.milli_tokens_witnessed / 1000

    @property
    def workers(self) -> tuple[ContributorRow, ...]:
        """Contributors whose work was averaged, even if no other member signed for it."""
        return tuple(row for row in self.contributors if row.milli_tokens_reported)

    def confirmed_share(self, committed_tokens: int) -> float:
        """Return the share of the run's tokens that other machines confirmed, 0 to 1."""
        return min(1.0, self.tokens_witnessed / max(1, committed_tokens))

    @property
    def num_people(self) -> int:
        """Number of people with a signed round."""
        return sum(row.rank > 0 for row in self.contributors)

    def contributor(self, contributor_id: str) -> ContributorRow | None:
        """Return a row by its id, or by the id of one of its machines."""
        for row in self.contributors:
            if row.contributor_id == contributor_id or any(one.peer_id == contributor_id for one in row.machines):
                return row
        return None
