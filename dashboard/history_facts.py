"""What a run's history says, as values. Pure: `history/` makes them; page, API and export show them.

Times are unix seconds. Ids and texts were checked and stripped before they came here; they are still escaped where
they are shown. `*_witnessed` is what others in the round signed, `*_reported` what the peer itself says
(`docs/organiser/dashboard.md` has the definitions).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Condition = Literal["here", "late", "left", "silent"]
"""`late` missed three announcements, `silent` let its record expire; `left` said goodbye."""
MarkKind = Literal["join", "leave", "revision", "note", "sample"]


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """A contributor's signed profile, with hostile text stripped."""

    contributor_id: str
    sequence: int
    issued_at: float
    name: str
    """Empty when none was given."""
    country: str
    """Two capital letters (ISO 3166), or empty."""
    is_hidden: bool
    """Name and country are withdrawn everywhere, also from what was stored before."""
    machines: tuple[str, ...]
    """PeerIds; a machine counts only when its own record names this contributor too."""
    team: str = ""
    """Empty when none was given."""


class _InTokens:
    """Tokens of what is counted in thousandths of them."""

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
    """While this dashboard watched; it is no promise about the time before."""
    milli_tokens_reported: int = 0
    rounds_missed: int = 0


@dataclass(frozen=True, slots=True)
class ContributorRow(_InTokens):
    """A person, known by a key; without a key, the machine itself."""

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
    """Rounds that planned with a machine of theirs and got nothing from it."""
    first_at: float
    last_at: float
    is_here: bool
    machines: tuple[MachineRow, ...]
    rank: int = 0
    """From 1, by witnessed tokens; 0: nothing witnessed yet."""
    team: str = ""
    """The team that the contributor says to work for; empty: none, or hidden."""

    @property
    def num_machines(self) -> int:
        return len(self.machines)


@dataclass(frozen=True, slots=True)
class DayOfWork:
    """A contributor's witnessed work of one day."""

    day: int
    """Since 1 January 1970 (UTC)."""
    milli_tokens_witnessed: int
    rounds: int


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """The run at one moment. Losses and rates are medians and sums over what live trainers report; bits per second are
    those of the last minute's rounds."""

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
    """Something to be seen beside the curves, which happened at `at`."""

    at: float
    committed_tokens: int
    kind: MarkKind
    peer_id: str = ""
    """The peer that came or went; empty for the others."""
    who: str = ""
    """Name of that peer."""
    text: str = ""
    """The organiser's words, for a note."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A time that this history knows nothing of (`commits` of that time may have been fetched later)."""

    begin_at: float
    end_at: float
    reason: str
    """In words, for people."""


@dataclass(frozen=True, slots=True)
class MissingRounds:
    """Versions of a fragment whose commits nobody remembered when this dashboard asked."""

    fragment: int
    first_version: int
    last_version: int
    """Inclusive; versions that the missing rounds left."""


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """A closed round: it left `version` of `fragment`."""

    fragment: int
    version: int
    seen_at: float
    leader: str = ""
    """Empty: it is told from peer records, and nothing more is known of it."""
    tokens: int = 0
    contributors: tuple[str, ...] = ()
    """PeerIds that are in it."""
    num_missed: int = 0
    num_void_shards: int = 0
    drop_reasons: tuple[tuple[str, int], ...] = ()
    num_rounds: int = 1
    """Rounds since the last version that was seen here; records tell only where a peer stands when it writes one."""


@dataclass(frozen=True, slots=True)
class TrafficTotals:
    """Encoded values that went over the peers' lines, as the signed commits of all rounds tell; without framing,
    retries and what joiners fetched."""

    upload_bytes: float = 0.0
    data_parallel_bytes: float | None = None
    """What the same inner steps would have uploaded with plain data-parallel training: float32 gradients, a ring over
    the round's members, every step. None: not known."""

    @property
    def times_less(self) -> float | None:
        """How many times less was uploaded than plain data-parallel would have; None: nothing to compare yet."""
        if not self.data_parallel_bytes or self.upload_bytes <= 0:
            return None
        return self.data_parallel_bytes / self.upload_bytes


@dataclass(frozen=True, slots=True)
class WorkPoint:
    """A contributor's work up to one moment."""

    at: float
    tokens_witnessed: float
    """Altogether, up to that moment."""
    tokens_reported: float
    rounds: int


@dataclass(frozen=True, slots=True)
class ContributorView:
    """A contributor's own page."""

    row: ContributorRow
    curve: tuple[WorkPoint, ...] = ()
    rounds: tuple[RoundFacts, ...] = ()
    """The newest ones that a machine of theirs was planned in, newest first."""
    num_ranked: int = 0
    """Contributors with a rank."""
    days: tuple[DayOfWork, ...] = ()
    """With a round, oldest first."""
    above: ContributorRow | None = None
    """The next better one in the ranking."""
    below: ContributorRow | None = None
    num_witnesses: int = 0
    """Others that signed for this work, as far as the rounds that are known here tell."""


@dataclass(frozen=True, slots=True)
class WrittenText:
    """The model's continuation of a prompt."""

    prompt: str
    """Empty: it began by itself."""
    text: str


@dataclass(frozen=True, slots=True)
class ModelSample:
    """The committed model's texts at one moment."""

    at: float
    """Time at which its anchors were taken."""
    version: int
    """The rounds in them: the sum of all fragments' versions."""
    committed_tokens: int
    """Into them."""
    validation_loss: float | None
    """The newest that was known then, in the unit of the run's losses."""
    texts: tuple[WrittenText, ...]


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Score of the model in a task of lm-eval."""

    task: str
    metric: str
    value: float
    error: float | None
    """Its standard error; None: not known."""
    num_samples: int
    committed_tokens: int
    """Into the model that was measured."""
    version: int
    """The rounds in it: the sum of all fragments' versions."""


@dataclass(frozen=True, slots=True)
class HistoryView:
    """Everything about the past that the page shows beside `DashboardState`; all of it bounded."""

    now: float
    started_at: float
    """The oldest thing this history knows."""
    contributors: tuple[ContributorRow, ...] = ()
    """Ranked by witnessed tokens; those with nothing witnessed last."""
    num_unverified: int = 0
    """Peers that no commit lists: they say that they are there, and have no row in `contributors`."""
    points: tuple[HistoryPoint, ...] = ()
    """Oldest first, thinned to about a thousand over the whole history."""
    marks: tuple[ChartMark, ...] = ()
    rounds: tuple[RoundFacts, ...] = ()
    """Newest first."""
    bandwidth: TrafficTotals = TrafficTotals()
    gaps: tuple[Gap, ...] = ()
    missing: tuple[MissingRounds, ...] = ()
    num_rounds: int = 0
    """Rounds whose signed commits are in this history."""
    milli_tokens_witnessed: int = 0
    """Tokens of all contributors, in thousandths."""
    samples: tuple[ModelSample, ...] = ()
    """Oldest first."""
    scores: tuple[TaskScore, ...] = ()
    """Scores by tokens."""
    storage: str = ""
    """Place of the history, in words."""
    problem: str = ""
    """Why it is not being kept at present, as a sentence; empty: it is."""
    searched: list[str] = field(init=False, default_factory=list, compare=False, repr=False)
    """What each of `contributors` is found by, once somebody has searched."""

    @property
    def tokens_witnessed(self) -> float:
        return self.milli_tokens_witnessed / 1000

    @property
    def num_people(self) -> int:
        """People with a signed round."""
        return sum(row.rank > 0 for row in self.contributors)

    def contributor(self, contributor_id: str) -> ContributorRow | None:
        """A row by its id, or by the id of one of its machines."""
        for row in self.contributors:
            if row.contributor_id == contributor_id or any(one.peer_id == contributor_id for one in row.machines):
                return row
        return None
