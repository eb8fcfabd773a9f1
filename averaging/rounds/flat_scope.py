"""The members of a peer's rounds, and what follows from that. Sans-I/O.

A `RoundMachine` asks its scope. `FlatScope` is that of one swarm: all trainers are in one round, and the commit with
which its leader closes it goes to everybody. In its place `averaging.cells.cell_scope.CellScope` puts rounds on two
levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from averaging.rounds.leader import Leading
from averaging.rounds.learned_durations import RoundTiming
from averaging.rounds.machine_events import Event, Heard, View
from averaging.rounds.round_facts import Effect
from averaging.rounds.shard_plan import plan_shards
from averaging.signing.round_signatures import Notary
from averaging.wire.messages import MAX_ROSTER, Commit, Message, Offer, Plan, ShardPlan, VersionIs
from dht.host import PeerId


class ScopedRounds(Protocol):
    """Port: the rounds of one fragment, as its scope sees them and acts in them; see `RoundMachine`."""

    me: PeerId
    run_id: str
    fragment: int
    num_values: int
    block_size: int
    timing: RoundTiming
    notary: Notary
    quorum_fraction: float
    most_of_median: float
    version: int
    anchor_digest: bytes
    followers: tuple[PeerId, ...]
    history: dict[int, Commit]
    applying: Commit | None
    leading: Leading | None

    @property
    def leader(self) -> PeerId | None: ...
    @property
    def digest_before(self) -> bytes: ...
    def plan_under(self, attempt: int, leader: PeerId) -> Plan | None: ...
    def send(self, to: PeerId, message: Message) -> None: ...
    def tell(self, effect: Effect) -> None: ...
    def version_is(self) -> VersionIs: ...
    def tell_outcome(self, to: PeerId, version: int) -> None: ...
    def note_ahead(self, sender: PeerId, version: int) -> None: ...
    def take_commit(self, sender: PeerId, commit: Commit, now: float) -> None: ...
    def start_over(self, now: float) -> None: ...
    def stop_leading(self) -> list[PeerId]: ...


class FlatScope:
    """All trainers are in one round.

    Attributes:
        cell: name of the cell of this peer in the current version; empty when rounds are flat.
        trainers: those that count and are in rounds with this peer, in order.
        num_known: how many there are with those that do not answer now.
    """

    def __init__(self, rounds: ScopedRounds) -> None:
        self._rounds = rounds
        self.cell = ""
        self.trainers: tuple[PeerId, ...] = ()
        self.num_known = 0

    # ------------------------------------------------------------------------------------- who is in a round, and how

    @property
    def is_flat(self) -> bool:
        """Whether rounds of the current version have one level: their means are what everybody applies."""
        return not self.cell

    @property
    def max_roster(self) -> int:
        return MAX_ROSTER

    def see(self, view: View, now: float) -> None:
        self.trainers, self.num_known = view.trainers, max(len(view.trainers), view.num_known)

    def refusal(self, sender: PeerId, offer: Offer) -> Message | None:
        """What a peer hears that offers to this one for the current version and belongs elsewhere."""
        return None

    def plan_shards(self, offers: Sequence[Offer]) -> tuple[ShardPlan, ...]:
        rounds, rates = self._rounds, [offer.upload_bits_per_second for offer in offers]
        reachable = [offer.reachable for offer in offers]
        return plan_shards(rounds.num_values, rounds.block_size, rates, reachable, rounds.most_of_median)

    def close(self, commit: Commit, now: float) -> None:
        """This peer led a round to its end."""
        rounds, roster = self._rounds, (entry.peer_id for entry in commit.roster)
        for peer_id in sorted({rounds.me, *self.trainers, *rounds.followers, *roster}):
            rounds.send(peer_id, commit)

    # --------------------------------------------------------------------------------------------- events and time

    @property
    def next_time(self) -> float:
        """When `check` has something to do although nothing arrived."""
        return math.inf

    def check(self, now: float) -> None:
        """Do what is due; not while a commit is being applied."""

    def take(self, event: Event, now: float) -> bool:
        """Take an event, before the machine does; returns whether that is all."""
        return False

    def hear(self, sender: PeerId, message: Message, now: float) -> bool:
        """Hear a message, before the machine does; returns whether that is all."""
        return False

    def lose(self, peer_id: PeerId, reason: str, now: float) -> None:
        """The connection to a peer broke."""

    # ----------------------------------------------------------------------------------------------- commits, versions

    def own_commit(self, sender: PeerId, commit: Commit, now: float) -> Commit | None:
        """A commit as members of this peer's cell apply it; None: it has to wait until that is here."""
        return commit

    def begins_to_apply(self, sender: PeerId, commit: Commit) -> None:
        """A commit for the current version is being applied from now on."""

    def knows_own_part(self, commit: Commit) -> bool:
        """Whether a commit says what became of own work."""
        return True

    def restart(self) -> None:
        """The round of the current version begins anew."""

    def leave(self, commit: Commit | None) -> None:
        """The version is left, with a commit or for an anchor that was fetched."""

    def advanced(self, silent: frozenset[PeerId]) -> list[Heard]:
        """Another version is the current one; returns what was heard for it before. `silent` are not asked to lead."""
        return []

    # --------------------------------------------------------------------------------------------- results of commits

    def relays(self, sender: PeerId, number: int) -> tuple[PeerId, ...]:
        """The peers that get result `number` from here when `sender` sent it."""
        return ()

    def fetches(self, number: int) -> bool:
        """Whether this peer asks for result `number` before others of its cell had the time to get it for all."""
        return True


ScopeOf = Callable[[ScopedRounds], FlatScope]
