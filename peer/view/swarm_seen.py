"""What a peer sees of the others, for the person at its panel: ranks and names. Pure.

It is no event: it comes every few seconds, and nobody asks for it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dht.ground.host import PeerId
from dht.ground.quantities import state_text
from dht.records.peer_record import PeerRecord
from dht.records.profiles import Profile
from peer.view.run_view import NO_WORK, NOWHERE, RunView, run_view_of

NUM_ROWS = 12
"""People that are listed: the first ones, and those around the peer itself. A tall terminal has no more room."""
MAX_PEOPLE = 5000
"""That are told apart in a session; a flood of keys must not fill the memory."""
PROFILES_SECONDS = 600.0
"""Between two looks at what people say of themselves, which seldom changes."""
FIRST_PROFILES_SECONDS = 10.0
"""After joining: not while the state comes."""
NEWCOMER_PROFILES_SECONDS = 30.0
"""At least, between two looks for the sake of newcomers: a flood of made-up ones costs no more than that."""
LOOKS_PER_NEWCOMER = 2
"""For a profile that names it: the first look may come before the profile, and a claim may have none."""


@dataclass(frozen=True, slots=True)
class OwnAddresses:
    """Where others reach this peer now, as multiaddrs with its PeerId."""

    addresses: tuple[str, ...]
    join_command: str = ""
    """What others type to join here; empty: nobody said."""
    listening: tuple[str, ...] = ()
    """Multiaddrs of this machine that a seed listens on, with the ports that it got."""

    def sentences(self) -> list[str]:
        if not self.addresses:
            return ["this machine has no address now: without a network nobody reaches it"]
        told = ["listening on " + "  ".join(self.addresses)]
        return [*told, f"others join with: {self.join_command}"] if self.join_command else told


@dataclass(frozen=True, slots=True)
class PersonSeen:
    """One row of the ranking."""

    rank: int
    name: str
    """As the person says; empty: they gave none."""
    peer_id: PeerId
    """One of their machines."""
    tokens: int
    tokens_per_second: float
    doing: str
    """training, paused, joining or away."""
    is_own: bool = False
    num_machines: int = 1
    """That were met, whose work is in `tokens`."""


@dataclass(frozen=True, slots=True)
class SwarmSeen:
    """One look at the swarm."""

    at: float
    """Unix seconds."""
    own_name: str = ""
    own_id: str = ""
    """Of this peer's person, as the run's page has it in its address."""
    run: RunView = NOWHERE
    """The figures of the run, as each renderer shows them."""
    num_ranked: int = 0
    """People met in this session, also if they have left."""
    rows: tuple[PersonSeen, ...] = ()
    names: tuple[tuple[PeerId, str], ...] = ()
    """Of machines whose names are new since the last look."""
    relayed: tuple[PeerId, ...] = ()
    """Members that others reach through this peer alone; see `dht.p2pd.host.P2pdHost.relayed_here`."""
    num_others: int = 0
    """Machines that are here, without this one: trainers that train, rest or join, and seeds."""
    num_silent: int = 0
    """More of them, whose records are alive and that do not answer this peer."""
    num_other_trainers: int = 0
    """That train now, here and silent ones."""
    num_silent_trainers: int = 0

    @property
    def own_row(self) -> PersonSeen | None:
        return next((row for row in self.rows if row.is_own), None)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> SwarmSeen:
        """From plain values, as `dataclasses.asdict` and JSON give them."""
        rows = tuple(PersonSeen(**row) for row in fields["rows"])
        names = tuple((PeerId(peer_id), name) for peer_id, name in fields["names"])
        run, relayed = RunView.from_json(fields["run"]), tuple(fields["relayed"])
        return cls(**{**fields, "run": run, "rows": rows, "names": names, "relayed": relayed})

    def to_json(self) -> dict[str, Any]:
        """Return the look as plain values."""
        return {**asdict(replace(self, run=NOWHERE)), "run": self.run.to_json()}


class ProfileLooks:
    """When profiles are looked at: regularly, and soon after a machine came that says it is somebody's.

    Args:
        now: when this peer joined; seconds of a steady clock.
    """

    def __init__(self, now: float) -> None:
        self._regular_at = self._soon_at = now + FIRST_PROFILES_SECONDS
        self._num_looks: dict[PeerId, int] = {}

    def is_due(self, strangers: Iterable[PeerId], now: float) -> bool:
        """Whether to look now, which counts as done. `strangers`: as `SwarmWatch.strangers` gives them."""
        num_looks = {one: self._num_looks.get(one, 0) for one in strangers}
        is_new = any(num < LOOKS_PER_NEWCOMER for num in num_looks.values())
        if now < (self._soon_at if is_new else self._regular_at):
            return False
        self._regular_at, self._soon_at = now + PROFILES_SECONDS, now + NEWCOMER_PROFILES_SECONDS
        self._num_looks = {one: num + 1 for one, num in num_looks.items()}
        return True


@dataclass(eq=False)
class SwarmWatch:
    """Adds up what records say, look after look.

    Attributes:
        machine_name: given to this machine with --name; empty: none.
        own_id: of this peer's person; empty: the peer stands for itself.
    """

    me: PeerId
    machine_name: str = ""
    own_id: str = ""

    def __post_init__(self) -> None:
        self.own_name = self.machine_name
        """What this peer's person is called; empty: they gave no name, or hide it."""
        self._met: dict[PeerId, tuple[bytes, PersonSeen]] = {}
        """Machines of this session, each with its person; also those that have left."""
        self._machines: dict[PeerId, int] = {}
        self._names: dict[PeerId, str] = {}
        self._profiles: Mapping[bytes, Profile] = {}
        self._run = NOWHERE
        self._have_worked: set[PeerId] = set()
        """Machines whose work was in a signed commit of this session."""

    def take_profiles(self, profiles: Mapping[bytes, Profile]) -> None:
        """What people say of themselves, by their contributor keys; in place of what they said before."""
        self._profiles = profiles

    def take_own_profile(self, key: bytes, profile: Profile) -> None:
        """What this peer's person says on this machine; it counts unless another machine of theirs said more later."""
        published = self._profiles.get(key)
        if published is not None and published.sequence > profile.sequence:
            profile = published
        elif profile.sequence:
            self._profiles = {**self._profiles, key: profile}
        self.own_name = "" if profile.is_hidden else self.machine_name or profile.name

    def strangers(self, records: Iterable[PeerRecord]) -> set[PeerId]:
        """Machines that say they are somebody's whose profile does not name them, as far as it is known."""
        return {one.peer_id for one in records if one.contributor_key and self._said(one) is None}

    def look(
        self,
        records: Iterable[PeerRecord],
        now: float,
        relayed: tuple[PeerId, ...] = (),
        silent: Sequence[PeerRecord] = (),
        work: Mapping[PeerId, int] = NO_WORK,
    ) -> SwarmSeen:
        """Take in the records of all members that are here, this peer's own among them.

        Args:
            relayed: as in `SwarmSeen`.
            silent: records of members that do not answer this peer.
            work: tokens of each member in the newest signed commits. Once there are any, only those who have worked
                are ranked: a record alone is a claim.
        """
        here = list(records)
        called = {one.peer_id: self._name_of(one) for one in here}
        new_names = tuple((peer_id, name) for peer_id, name in called.items() if self._names.get(peer_id, "") != name)
        if len(self._names) + len(new_names) > MAX_PEOPLE:
            self._names.clear()
        self._names.update(new_names)
        mine = next((one for one in here if one.peer_id == self.me), None)
        own = b"" if mine is None else self._person(mine)
        trainers = [one for one in here if one.role == "trainer"]
        if len(self._have_worked) + len(work) > MAX_PEOPLE:
            self._have_worked.clear()
        self._have_worked.update(work)
        known = [one for one in trainers if one.peer_id == self.me or one.peer_id in self._have_worked]
        ranked = trainers
        if self._have_worked:
            ranked = known
            # Before the first signed work everybody was ranked.
            self._met = {one: met for one, met in self._met.items() if one == self.me or one in self._have_worked}
        self._note_work(ranked)
        people = self._rank(ranked, own)
        self._run = run_view_of(here, work, now, self._run)
        return SwarmSeen(
            at=now,
            own_name=self.own_name or ("" if mine is None else self._name_of(mine)),
            own_id=self.own_id or self.me,
            run=self._run,
            num_ranked=len(people),
            rows=_chosen(people),
            names=new_names,
            relayed=relayed,
            num_others=sum(one.peer_id != self.me for one in here),
            num_silent=len(silent),
            num_other_trainers=sum(one.state == "training" and one.peer_id != self.me for one in (*trainers, *silent)),
            num_silent_trainers=sum(one.state == "training" for one in silent),
        )

    def _said(self, record: PeerRecord) -> Profile | None:
        """The profile of its person; a machine that only claims to be somebody's is not theirs."""
        said = self._profiles.get(record.contributor_key)
        return said if said is not None and record.peer_id in said.machines else None

    def _name_of(self, record: PeerRecord) -> str:
        said = self._said(record)
        if said is not None and said.is_hidden:
            return ""
        return said.name if said is not None and said.name else record.name

    def _note_work(self, trainers: list[PeerRecord]) -> None:
        if len(self._machines) > MAX_PEOPLE:
            self._machines.clear()
        self._machines.update((one.peer_id, max(one.tokens, self._machines.get(one.peer_id, 0))) for one in trainers)

    def _rank(self, trainers: list[PeerRecord], own: bytes) -> list[PersonSeen]:
        if len(self._met) + len(trainers) > MAX_PEOPLE:
            self._met.clear()
        self._met = {
            peer_id: (person, replace(row, tokens_per_second=0.0, doing="away"))
            for peer_id, (person, row) in self._met.items()
        }
        for one in trainers:
            doing = state_text(one.state, one.role)
            tokens = max(one.tokens, self._machines.get(one.peer_id, 0))
            row = PersonSeen(0, self._name_of(one), one.peer_id, tokens, one.tokens_per_second, doing)
            self._met[one.peer_id] = self._person(one), row
        people: dict[bytes, PersonSeen] = {}
        for person, row in self._met.values():
            before = people.get(person)
            people[person] = row if before is None else _together(before, row)
        if own in people:
            row = people[own]
            people[own] = replace(row, name=self.own_name or row.name, is_own=True)
        ordered = sorted(people.values(), key=lambda row: (-row.tokens, row.peer_id))
        return [replace(row, rank=place) for place, row in enumerate(ordered, 1)]

    def _person(self, record: PeerRecord) -> bytes:
        """The person of a machine, as on the run's page: a contributor whose profile names it, else it stands alone.

        This peer's own machine needs no profile: it has the key.
        """
        is_theirs = record.peer_id == self.me or self._said(record) is not None
        return record.contributor_key if record.contributor_key and is_theirs else record.peer_id.encode()


_DOING = ("training", "joining", "paused", "away")
"""What is said of a person with several machines: the first of these that one of them does."""


def _together(one: PersonSeen, other: PersonSeen) -> PersonSeen:
    """Two machines of a person as one row."""
    first = min(one, other, key=lambda row: _DOING.index(row.doing) if row.doing in _DOING else 0)
    return replace(
        first,
        name=first.name or one.name or other.name,
        tokens=one.tokens + other.tokens,
        tokens_per_second=one.tokens_per_second + other.tokens_per_second,
        num_machines=one.num_machines + other.num_machines,
    )


def _chosen(people: list[PersonSeen]) -> tuple[PersonSeen, ...]:
    """The first ones, and in their end this peer's person with their neighbours."""
    own = next((row.rank for row in people if row.is_own), 0)
    if own <= NUM_ROWS:
        return tuple(people[:NUM_ROWS])
    return (*people[: NUM_ROWS - 3], *people[own - 2 : own + 1])
