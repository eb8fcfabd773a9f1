"""A peer's view of the other members for its panel: the run, names, and how many members answer. Pure.

The view is not an event: it is updated every few seconds and not stored.
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
"""Number of rows that fit on a tall terminal."""
MAX_NAMES = 5000
"""Most names kept in a session, because a flood of keys must not fill the memory."""


@dataclass(frozen=True, slots=True)
class OwnAddresses:
    """The current addresses of this peer, as multiaddrs with its PeerId."""

    addresses: tuple[str, ...]
    join_command: str = ""
    """The command with which others join; empty: unknown."""
    listening: tuple[str, ...] = ()
    """Multiaddrs on which a seed listens on this machine, with the chosen ports."""

    def sentences(self) -> list[str]:
        if not self.addresses:
            return ["this machine has no address now: without a network no member can reach it"]
        told = ["listening on " + "  ".join(self.addresses)]
        return [*told, f"others join with: {self.join_command}"] if self.join_command else told


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """A present trainer: one row of the panel's table."""

    name: str
    """The trainer's name; empty: none given."""
    peer_id: PeerId
    tokens: int
    tokens_per_second: float
    doing: str
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class SwarmSeen:
    """One observation of the swarm."""

    at: float
    """Unix seconds."""
    own_name: str = ""
    own_id: str = ""
    """The id of this peer's person, as in the address of the run's page."""
    run: RunView = NOWHERE
    """The figures of the run for all renderers."""
    rows: tuple[MemberSeen, ...] = ()
    """This peer, and the trainers that decide the figures of `run`, by their tokens; at most `NUM_ROWS`."""
    names: tuple[tuple[PeerId, str], ...] = ()
    """Names of machines that changed since the last observation."""
    num_others: int = 0
    """Number of other present machines: trainers that train, rest or join, and seeds."""
    num_silent: int = 0
    """Number of additional machines with live records that do not answer this peer."""
    num_other_trainers: int = 0
    """Number of other machines that train now, including silent ones."""
    num_silent_trainers: int = 0

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> SwarmSeen:
        """Restore an observation from plain values, as `dataclasses.asdict` and JSON return them."""
        rows = tuple(MemberSeen(**row) for row in fields["rows"])
        names = tuple((PeerId(peer_id), name) for peer_id, name in fields["names"])
        return cls(**{**fields, "run": RunView.from_json(fields["run"]), "rows": rows, "names": names})

    def to_json(self) -> dict[str, Any]:
        """Return the observation as plain values."""
        return {**asdict(replace(self, run=NOWHERE)), "run": self.run.to_json()}


@dataclass(eq=False)
class SwarmWatch:
    """Accumulates records over successive observations.

    Attributes:
        machine_name: name of this machine from --name; empty: none.
        own_id: id of this peer's person; empty: the peer has no person.
    """

    me: PeerId
    machine_name: str = ""
    own_id: str = ""

    def __post_init__(self) -> None:
        self.own_name = self.machine_name
        """The name of this peer's person; empty: none given, or hidden."""
        self._names: dict[PeerId, str] = {}
        self._profiles: Mapping[bytes, Profile] = {}
        self._run = NOWHERE

    def take_profiles(self, profiles: Mapping[bytes, Profile]) -> None:
        """Replace the profiles of people, by their contributor keys."""
        self._profiles = profiles

    def take_own_profile(self, key: bytes, profile: Profile) -> None:
        """Use the profile of this peer's person from this machine, unless another of their machines published a newer
        one.
        """
        published = self._profiles.get(key)
        if published is not None and published.sequence > profile.sequence:
            profile = published
        elif profile.sequence:
            self._profiles = {**self._profiles, key: profile}
        self.own_name = "" if profile.is_hidden else self.machine_name or profile.name

    def look(
        self,
        records: Iterable[PeerRecord],
        now: float,
        silent: Sequence[PeerRecord] = (),
        work: Mapping[PeerId, int] = NO_WORK,
    ) -> SwarmSeen:
        """Process the records of all present members, including this peer's own.

        Args:
            silent: records of members that do not answer this peer.
            work: tokens of each member in the newest signed commits.
        """
        here = list(records)
        called = {one.peer_id: self._name_of(one) for one in here}
        new_names = tuple((peer_id, name) for peer_id, name in called.items() if self._names.get(peer_id, "") != name)
        if len(self._names) + len(new_names) > MAX_NAMES:
            self._names.clear()
        self._names.update(new_names)
        mine = next((one for one in here if one.peer_id == self.me), None)
        trainers = [one for one in here if one.role == "trainer"]
        self._run = run_view_of(here, work, now, self._run)
        return SwarmSeen(
            at=now,
            own_name=self.own_name or ("" if mine is None else self._name_of(mine)),
            own_id=self.own_id or self.me,
            run=self._run,
            rows=self._rows(trainers),
            names=new_names,
            num_others=sum(one.peer_id != self.me for one in here),
            num_silent=len(silent),
            num_other_trainers=sum(one.state == "training" and one.peer_id != self.me for one in (*trainers, *silent)),
            num_silent_trainers=sum(one.state == "training" for one in silent),
        )

    def _said(self, record: PeerRecord) -> Profile | None:
        """Return the profile of the machine's person; None if the profile does not list the machine."""
        said = self._profiles.get(record.contributor_key)
        return said if said is not None and record.peer_id in said.machines else None

    def _name_of(self, record: PeerRecord) -> str:
        said = self._said(record)
        if said is not None and said.is_hidden:
            return ""
        return said.name if said is not None and said.name else record.name

    def _rows(self, trainers: Sequence[PeerRecord]) -> tuple[MemberSeen, ...]:
        electors = {record.peer_id for record in self._run.electors} | {self.me}
        rows = [
            MemberSeen(
                self._name_of(record),
                record.peer_id,
                record.tokens,
                record.tokens_per_second,
                state_text(record.state, record.role),
                record.peer_id == self.me,
            )
            for record in trainers
            if record.peer_id in electors
        ]
        # Of too many rows the last are dropped, but never this peer's.
        first = sorted(rows, key=lambda row: (not row.is_own, -row.tokens, row.peer_id))[:NUM_ROWS]
        return tuple(sorted(first, key=lambda row: (-row.tokens, row.peer_id)))
