"""Announces this peer, merges records of other members into a view, and suspects members that do not answer.

Records are sent in two ways: through the DHT every `announce_seconds`, and directly when other members need the change
at once (joining, leaving). So a newcomer takes part in the next round, and no round waits for a leaving member.

A record costs nothing and only gives an address: a member is *met* when it has opened a stream to this peer, or
answered one. After each look into the DHT this peer tries some members that it has not met. A peer that cannot be
reached is suspected, whatever its record says: it is not contacted for a growing time, then tried again, and takes part
in no round until it has answered. An answer ends the suspicion, but does not reset the growing time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TypeVar

from averaging.lanes.handshake import OPEN_SECONDS, HandshakePolicy, greet_incoming, open_greeted_stream
from averaging.rounds.round_facts import Fact
from averaging.trust.announced_speeds import AnnouncedSpeeds
from dht.ground.bounds import Allowances, Newest, Pauses
from dht.ground.clocks import CLOCK_SKEW_SECONDS
from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import Host, PeerId, Stream
from dht.ground.store import RecordStore
from dht.identity.keys import Identity
from dht.records.key_levels import Levels, prefix_of, turn_seconds
from dht.records.peer_record import (
    MAX_PEER_RECORD_BYTES,
    MAX_PEER_RECORD_LIFE_SECONDS,
    PeerRecord,
    decode_peer_record,
    fitting_peer_record,
)
from dht.records.signature_cache import VerifiedRecords
from dht.records.swarm_view import SwarmView
from peer.events.peer_events import MemberChanged

RECORD_PROTOCOL = "/murmuration/record/1"
FIRST_SUSPICION_SECONDS = 5.0
"""Time for which a peer that did not answer is not contacted, doubled each time."""
LONGEST_SUSPICION_SECONDS = 300.0
"""A peer behind an unstable connection is tried again after 5 minutes at the latest."""
MAX_SUSPECTED = 16_384
"""Limit on suspected members, and on members that this peer introduced itself to; 100 bytes each. A view has fewer."""
LOOK_SECONDS = 8.0
"""Duration of a look into the DHT, including retries."""
MAX_INTRODUCTIONS = 32
"""Members that a newcomer greets directly; the others find its record in the DHT."""
INTRODUCTIONS_AT_ONCE = 24
"""Introductions accepted from one remote. A leaving member makes a dozen, until another has its anchors."""
INTRODUCTION_SECONDS = 5.0
"""Time until one more is accepted: each may add or remove a member, which changes all fragments and the event log."""
MEETINGS_AT_ONCE = 8
"""Members not met or silent that are tried after each look; the limit keeps free records from costing more dials."""
ANSWER_SECONDS = 1.0
"""Time for which one signed record answers introductions while this peer's state and anchors stay the same."""
MOST_SHOWN_AT_ONCE = 64
"""In a larger swarm `on_view` follows a change a little later, together with the next changes."""
SHOW_SECONDS_PER_MEMBER = 0.001
LONGEST_SHOW_SECONDS = 5.0
"""Longest pause between two calls of `on_view`. Unknown peers are met in rounds and looks, which take longer."""

log = logging.getLogger(__name__)

_Key = TypeVar("_Key")

Head = tuple[int, bytes]
"""(version, first 8 bytes of the digest) of an anchor."""


@dataclass(eq=False)
class Membership:
    """This peer's record and its view of other members; `run` keeps both up to date until it is cancelled.

    Attributes:
        describe: returns this peer's current record, without `sequence` and `expires_at`, which are filled in here.
        wall_clock: unix seconds.
        on_view: called when the set of live peers may have changed; in a large swarm by `show_changes`.
        report: receives an event for each peer that appears or disappears.
        rules: the number of the run's rules; records with different rules are ignored.
        on_refused: called when a remote introduces itself wrongly.
        on_met: called with a peer that opened a stream to this peer, or answered one, and whether it introduced itself;
            returns whether the meeting was news.
        has_been_there: whether more than its record is known of a member.
        counts: whether a member's speed is included in the swarm's speeds.
        site: site of this peer; empty: none given.
        verified: records with verified signatures, which several views may share.
    """

    identity: Identity
    host: Host
    store: RecordStore
    handshake_policy: HandshakePolicy
    describe: Callable[[], PeerRecord]
    run_id: str
    manifest_hash: bytes
    _: KW_ONLY
    announce_seconds: float
    wall_clock: Callable[[], float]
    randomness: random.Random
    on_view: Callable[[], None]
    report: Callable[[Fact], None]
    on_refused: Callable[[PeerId, str], None]
    rules: int = 0
    on_met: Callable[[PeerId, bool], bool] = lambda peer_id, has_introduced_itself: False
    has_been_there: Callable[[PeerId], bool] = lambda peer_id: True
    counts: Callable[[PeerId], bool] = lambda peer_id: True
    site: str = ""
    verified: VerifiedRecords = field(default_factory=VerifiedRecords)

    def __post_init__(self) -> None:
        self._sequence = 0
        self._levels = Levels(self.identity.peer_id)
        self._longer: tuple[float, float] = (0.0, 0.0)
        """The additional life of the newest record, and when the record was made."""
        self._answered: tuple[float, object, bytes] = (-math.inf, None, b"")
        """The last answer to an introduction: its time, the announced state, and the encoded record."""
        self._silent: Newest[PeerId, None] = Newest(MAX_SUSPECTED)
        """Peers that have not answered since they failed to; they take part in no round."""
        self._pauses = Pauses[PeerId](FIRST_SUSPICION_SECONDS, LONGEST_SUSPICION_SECONDS, MAX_SUSPECTED)
        """The time until which each is not contacted; the growth is kept when a peer answers."""
        self._introduced_to: Newest[PeerId, None] = Newest(MAX_SUSPECTED)
        """Members that this peer introduced itself to. Each side must do so, because meetings are not mutual."""
        self._reported: set[PeerId] = set()
        """Members in `_known` whose arrival was reported."""
        self._known: dict[PeerId, PeerRecord] = {}
        self._speeds = AnnouncedSpeeds()
        self._signs: Counter[PeerId] = Counter()
        self._others: list[PeerRecord] = []
        """Live members, including excluded ones, without this peer and suspected ones."""
        self._others_of: tuple[tuple[PeerRecord, ...], frozenset[PeerId]] = ((), frozenset())
        """The records and the suspected peers from which `_others` was computed."""
        self.view = SwarmView(self.run_id)
        self._tally = MemberTally()
        """Counts over the members of `view`, including this peer."""
        self._is_to_show = asyncio.Event()
        self._allowances = Allowances[PeerId](INTRODUCTIONS_AT_ONCE, INTRODUCTION_SECONDS)
        self.host.handle(RECORD_PROTOCOL, self._serve)

    @property
    def life_seconds(self) -> float:
        """The life of a record in a small swarm: three announcements, one look-up, and a minute of clock difference.

        So a peer whose clock was never set is visible. A peer that vanished without a goodbye stays in view a minute
        longer, but is suspected as soon as another peer contacts it. In a large swarm, whose keys are read in turn, a
        record lives longer by the duration of a turn.
        """
        wanted = 3 * self.announce_seconds + LOOK_SECONDS + CLOCK_SKEW_SECONDS
        return min(wanted, MAX_PEER_RECORD_LIFE_SECONDS - CLOCK_SKEW_SECONDS)

    def members(self) -> list[PeerRecord]:
        """Return live members other than this peer that are not suspected."""
        now = self.wall_clock()
        announced = self.view.members(now)
        suspected = frozenset(peer_id for peer_id in self._silent if self._is_left_alone(peer_id, now))
        # Called about ten times a second, which is slow in a swarm of thousands; the result changes less often.
        if announced is not self._others_of[0] or suspected != self._others_of[1]:
            left_out = {*suspected, self.identity.peer_id}
            self._others = [record for record in announced if record.peer_id not in left_out]
            self._others_of = (announced, suspected)
        if not self.handshake_policy.may_exclude:
            return list(self._others)
        is_excluded = self.handshake_policy.is_excluded
        return [record for record in self._others if not is_excluded(record.peer_id)]

    def split(self) -> tuple[list[PeerId], list[PeerId]]:
        """Return trainers other than this peer that are not suspected, and all other `members`."""
        trainers: list[PeerId] = []
        others: list[PeerId] = []
        for record in self.members():
            is_taking_part = record.is_training and not self.is_suspected(record.peer_id)
            (trainers if is_taking_part else others).append(record.peer_id)
        return trainers, others

    def is_suspected(self, peer_id: PeerId) -> bool:
        """Whether a peer failed to answer, and has not answered since."""
        return peer_id in self._silent

    def suspected(self) -> list[PeerRecord]:
        """Return members other than this peer with live records that have not answered since they failed to."""
        now = self.wall_clock()
        announced = (self.view.get(peer_id, now) for peer_id in self._silent)
        return [
            record
            for record in announced
            if record is not None and not self.handshake_policy.is_excluded(record.peer_id)
        ]

    def suspected_trainers(self) -> list[PeerId]:
        """The trainers among `suspected`."""
        return [record.peer_id for record in self.suspected() if record.is_training]

    def _is_left_alone(self, peer_id: PeerId, now: float) -> bool:
        return peer_id in self._silent and self._pauses.holds(peer_id, now)

    def tokens_per_second(self, peer_id: PeerId) -> float:
        """Return the fastest speed that a peer announced recently, live or not; 0 if none is known."""
        return self._speeds.fastest(peer_id)

    def upload_bits_per_second(self, peer_id: PeerId) -> float:
        """Return the upload rate that a live member announces; 0 if unknown."""
        known = self._known.get(peer_id)
        return known.upload_bits_per_second if known is not None else 0.0

    def news_seconds(self) -> float:
        """Return how long a member's new announcement takes to arrive here: two announcements and a look-up."""
        return 2 * self.announce_seconds + LOOK_SECONDS + turn_seconds(self._levels.read_level)

    def speeds(self) -> list[float]:
        """Return the speeds of all other counted members that train now, including zeros."""
        records = (record for record in self.members() if record.state == "training")
        return [record.tokens_per_second for record in records if self.counts(record.peer_id)]

    def site_of(self, peer_id: PeerId) -> str:
        """Return the site that this peer or a live member announces; empty if it has none or is unknown."""
        if peer_id == self.identity.peer_id:
            return self.site
        known = self._known.get(peer_id)
        return known.site if known is not None else ""

    def is_abroad(self, peer_id: PeerId) -> bool:
        """Whether this peer and a live member are at different sites."""
        theirs = self.site_of(peer_id)
        return bool(theirs and self.site) and theirs != self.site

    def heads(self, fragment: int) -> Collection[Head]:
        """Return the distinct anchors that members announce, including suspected members and this peer."""
        return self._tally.heads(fragment)

    def is_duplicate(self) -> bool:
        """Whether an older live process has this identity; the older process stays, and this process must stop."""
        own = self.describe()
        return own.session in self.view.duplicate_sessions(own.peer_id, self.wall_clock())[1:]

    def suspect(self, peer_id: PeerId, reason: str) -> None:
        """Suspect a peer that did not answer: leave it out for a while."""
        if peer_id == self.identity.peer_id:
            return
        now = self.wall_clock()
        if self._is_left_alone(peer_id, now):
            return
        if now >= self._pauses.until(peer_id) + LONGEST_SUSPICION_SECONDS:
            self._pauses.forgive(peer_id)
        self._pauses.begin(peer_id, now)
        is_new = peer_id not in self._silent
        self._silent.pop(peer_id, None)
        self._silent[peer_id] = None
        if self._take(peer_id, reason, now) or is_new:
            self._show()

    def signs_of(self, peer_id: PeerId) -> int:
        """Return a count of received messages that prove the peer awake; a growing count means that it is alive."""
        return self._signs[peer_id]

    def heard_from(self, peer_id: PeerId, *, has_introduced_itself: bool = False) -> None:
        """Record that the peer opened a stream to this peer, sent a message on it, or answered, so that it is alive."""
        if peer_id in self._known:
            self._signs[peer_id] += 1
        is_news, was_silent = self.on_met(peer_id, has_introduced_itself), peer_id in self._silent
        self._silent.pop(peer_id, None)
        if is_news or was_silent:
            self._take(peer_id, "", self.wall_clock())
            self._show()

    async def run(self) -> None:
        """Announce and look repeatedly; never ends."""
        while True:
            await self.announce()
            for _ in range(2):
                await asyncio.sleep(self.announce_seconds / 2 * self.randomness.uniform(0.8, 1.2))
                await self.look()

    async def show_changes(self) -> None:
        """Call `on_view` for changes in a large swarm, with pauses in between; never ends."""
        while True:
            await self._is_to_show.wait()
            self._is_to_show.clear()
            self.on_view()
            await asyncio.sleep(min(LONGEST_SHOW_SECONDS, SHOW_SECONDS_PER_MEMBER * len(self._known)))

    async def announce(self) -> None:
        """Publish this peer's record in the DHT."""
        record, encoded = self._next_sealed()
        self._fold_in([record])
        levels = self._levels.publish_levels()
        await self.store.publish_peer(self.run_id, record.peer_id, encoded, record.expires_at, levels)

    async def look(self) -> None:
        """Fetch other members' records from the DHT: all, or in a large swarm those under some keys, different each
        time.
        """
        await self._read()
        if self._note_votes():
            # Needed e.g. when joining a large swarm: only now are the keys known under which this peer's neighbours are
            # stored.
            await self._read()
            self._note_votes()

    async def _read(self) -> None:
        closely, briefly = self._levels.next_keys(self.announce_seconds / 2)
        self._merge(await self.store.fetch_peers(self.run_id, closely))
        if briefly:
            self._merge(await self.store.fetch_peers(self.run_id, briefly, 1))

    def _note_votes(self) -> bool:
        self._take_what_passed()
        own = self.view.get(self.identity.peer_id, self.wall_clock())
        return self._levels.note(self._tally.levels - Counter([] if own is None else [own.level]))

    async def introduce(self, to: Sequence[PeerRecord] = ()) -> str:
        """Send this peer's record directly to live members and receive theirs; failures are only suspicions.

        Args:
            to: the members to contact; empty: some of all.

        Returns:
            the reason why members refused this peer, if some answered and none accepted it; empty otherwise.
        """
        _, encoded = self._next_sealed()
        chosen = to or self._whom_to_meet()
        answers = await asyncio.gather(*(self._exchange(record.peer_id, encoded) for record in chosen))
        refusals = [answer for answer in answers if answer]
        return "" if "" in answers or not refusals else refusals[0]

    async def meet_others(self) -> None:
        """Try members that this peer never introduced itself to, or that did not answer: a few at a time;
        never ends.
        """
        while True:
            await asyncio.sleep(self.announce_seconds / 2 * self.randomness.uniform(0.8, 1.2))
            if chosen := self._whom_to_try():
                await self.introduce(chosen)

    def _whom_to_try(self) -> list[PeerRecord]:
        """Choose a few counted members, due or not, so that a split heals soon, and a few others that are due."""
        now = self.wall_clock()
        silent = [record for record in self.suspected() if self.has_been_there(record.peer_id)]
        # A peer that sends messages here is no longer suspected, but may still not answer.
        due = [record for record in self.members() if not self._pauses.holds(record.peer_id, now)]
        unmet = [record for record in due if record.peer_id not in self._introduced_to]
        known = [record for record in silent if self.counts(record.peer_id)]
        others = [record for record in silent if record not in known and not self._is_left_alone(record.peer_id, now)]
        return [*self.some_of(known, MEETINGS_AT_ONCE), *self.some_of([*others, *unmet], MEETINGS_AT_ONCE)]

    def some_of(self, records: Sequence[PeerRecord], count: int) -> list[PeerRecord]:
        """Return at most `count` random records, so that not every peer chooses the same member."""
        return self.randomness.sample(records, min(count, len(records)))

    def _whom_to_meet(self) -> list[PeerRecord]:
        members = self.members()
        self.randomness.shuffle(members)
        if self._levels.read_level:
            # Other members can wait until they read this peer's key.
            members = self._nearest_first(members, MAX_INTRODUCTIONS // 2)
        return members[:MAX_INTRODUCTIONS]

    def _nearest_first(self, members: Sequence[PeerRecord], num_nearest: int) -> list[PeerRecord]:
        """Move a few members to the front whose hashed PeerIds share the longest prefix with this peer's."""
        own = prefix_of(self.identity.peer_id, 64)
        nearest = sorted(members, key=lambda record: prefix_of(record.peer_id, 64) ^ own)[:num_nearest]
        chosen = {record.peer_id for record in nearest}
        return [*nearest, *(record for record in members if record.peer_id not in chosen)]

    async def _exchange(self, peer_id: PeerId, encoded: bytes) -> str | None:
        """Return the reason why the peer refused this one; empty if it accepted, None if it was not reached."""
        try:
            stream = await open_greeted_stream(self.host, self.handshake_policy, peer_id, RECORD_PROTOCOL)
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    await stream.send(encoded)
                    self._merge([await stream.receive(MAX_PEER_RECORD_BYTES)])
                    self._introduced_to[peer_id] = None
                    self.heard_from(peer_id)
            finally:
                await stream.close()
        except (PeerUnreachable, TimeoutError) as fault:
            self.suspect(peer_id, str(fault))
            return None
        except PeerFault as fault:
            self.suspect(peer_id, fault.what)
            return fault.what
        return ""

    async def _serve(self, stream: Stream) -> None:
        try:
            await self._hear_introduction(stream)
        except PeerUnreachable:
            raise
        except PeerFault as fault:
            self.on_refused(stream.remote, fault.what)
            raise

    async def _hear_introduction(self, stream: Stream) -> None:
        if not self._allowances.spend(stream.remote, asyncio.get_running_loop().time()):
            raise PeerUnreachable(
                stream.remote, "introduces itself too often; this peer reads its record from other members"
            )
        await greet_incoming(stream, self.handshake_policy)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                data = await stream.receive(MAX_PEER_RECORD_BYTES)
        except TimeoutError as error:
            raise PeerUnreachable(stream.remote, f"sent no record within {OPEN_SECONDS:.0f} s") from error
        record = decode_peer_record(data, run_id=self.run_id, now=self.wall_clock(), verified=self.verified)
        if record.peer_id != stream.remote:
            raise PeerFault(stream.remote, f"introduced itself with the record of {record.peer_id}")
        self._merge([data])
        self.heard_from(stream.remote, has_introduced_itself=True)
        await stream.send(self._answer())
        # libp2p has no half-close: wait until the remote has read and closed.
        with contextlib.suppress(PeerFault, TimeoutError):
            async with asyncio.timeout(OPEN_SECONDS):
                await stream.receive(1)

    def _answer(self) -> bytes:
        """Return this peer's record as an answer; when thousands join, it is not signed again for each."""
        now, described = self.wall_clock(), self.describe()
        says = (described.state, described.versions, described.digests)
        answered_at, said, encoded = self._answered
        if said != says or not 0 <= now - answered_at < ANSWER_SECONDS:
            _, encoded = self._next_sealed()
            self._answered = (now, says, encoded)
        return encoded

    def _next_sealed(self) -> tuple[PeerRecord, bytes]:
        return fitting_peer_record(self.next_record(), self.identity)

    def next_record(self) -> PeerRecord:
        """Return this peer's current record, newer than all earlier ones."""
        self._sequence += 1
        now, vote = self.wall_clock(), self._levels.vote
        # Never expires before the record that it replaces, because holders would consider it older.
        still_longer = self._longer[0] - max(0.0, now - self._longer[1])
        longer_seconds = max(turn_seconds(vote), still_longer)
        self._longer = (longer_seconds, now)
        return replace(
            self.describe(),
            sequence=self._sequence,
            expires_at=now + self.life_seconds + longer_seconds,
            level=vote,
            longer_seconds=longer_seconds,
        )

    def _merge(self, encoded: Sequence[bytes]) -> None:
        now = self.wall_clock()
        records = []
        for data in encoded:
            try:
                record = decode_peer_record(data, run_id=self.run_id, now=now, verified=self.verified)
                if record.manifest_hash != self.manifest_hash:
                    raise PeerFault(record.peer_id, "announces a different manifest of this run")
                if record.rules != self.rules:
                    raise PeerFault(record.peer_id, f"announces rules {record.rules}; expected {self.rules}")
                records.append(record)
            except PeerFault as fault:
                log.debug("ignored a record: %s", fault)
        self._fold_in(records)

    def _fold_in(self, records: Sequence[PeerRecord]) -> None:
        now, before = self.wall_clock(), self.view
        self.view = before.merge(records, now)
        for peer_id in self.view.changed:
            announced = self.view.get(peer_id, now)
            self._tally.replace(before.get(peer_id, -math.inf), announced)
        said_goodbye = {record.peer_id for record in records if record.state == "left"}
        has_changed = False
        for peer_id in self.view.changed:
            why_gone = "it said goodbye" if peer_id in said_goodbye else "its record expired"
            has_changed = self._take(peer_id, why_gone, now) or has_changed
        if has_changed:
            self._show()

    def _take(self, peer_id: PeerId, why_gone: str, now: float) -> bool:
        """Apply the view's state of one peer; return True if it appeared, disappeared, or began or ended training."""
        known, record = self._known.get(peer_id), self.view.get(peer_id, now)
        if peer_id == self.identity.peer_id or self._is_left_alone(peer_id, now):
            record = None
        elif record is not None and self.handshake_policy.is_excluded(peer_id):
            record, why_gone = None, "it is no longer a member"
        if record is not None:
            self._known[peer_id] = record
            self._signs[peer_id] += known is not None and record.sequence > known.sequence
            self._speeds.note(peer_id, record.tokens_per_second, now)
            if peer_id not in self._reported and self.has_been_there(peer_id) and not self.is_suspected(peer_id):
                self._reported.add(peer_id)
                self.report(MemberChanged(peer_id))
        elif known is not None:
            del self._known[peer_id], self._signs[peer_id]
            if peer_id in self._reported:
                self._reported.remove(peer_id)
                self.report(MemberChanged(peer_id, why_gone))
        if known is None or record is None:
            return known is not record
        return known.is_training != record.is_training

    def _take_what_passed(self) -> None:
        """Apply changes without a record: a suspicion ended, a member was excluded, or its ticket expired.

        Records that expire are in `view.changed`.
        """
        now = self.wall_clock()
        doubtful = set(self._silent)
        for peer_id in doubtful:
            is_over = now >= self._pauses.until(peer_id) + LONGEST_SUSPICION_SECONDS
            if is_over and self.view.get(peer_id, now) is None:
                del self._silent[peer_id]
        # Members that were first seen in a commit.
        doubtful |= {peer_id for peer_id in self._known.keys() - self._reported if self.has_been_there(peer_id)}
        if self.handshake_policy.may_exclude:
            doubtful |= {record.peer_id for record in self.members()} ^ self._known.keys()
        for peer_id in sorted(doubtful):
            self._take(peer_id, "it cannot be reached", now)
        self._show()

    def _show(self) -> None:
        """Call `on_view`: at once in a small swarm, and delayed in a large one, where a call per change would take all
        time.
        """
        if len(self._known) <= MOST_SHOWN_AT_ONCE:
            self.on_view()
        else:
            self._is_to_show.set()


class MemberTally:
    """Counts the announcements of members in view. A swarm of thousands is counted every few seconds."""

    def __init__(self) -> None:
        self.levels: Counter[int] = Counter()
        """Number of members by their vote on the number of keys over which records should be split."""
        self._heads: dict[int, Counter[Head]] = {}

    def heads(self, fragment: int) -> Collection[Head]:
        """Return the distinct anchors of a fragment that members announce; joining members have none."""
        return self._heads.get(fragment, Counter()).keys()

    def replace(self, before: PeerRecord | None, after: PeerRecord | None) -> None:
        """Replace a member's record; None: the member was absent before, or has gone."""
        if before is not None and after is not None and _announce_the_same(before, after):
            return
        for record, number in ((before, -1), (after, 1)):
            if record is None:
                continue
            _add(self.levels, record.level, number)
            for fragment, head in enumerate(_heads_of(record)):
                _add(self._heads.setdefault(fragment, Counter()), head, number)


def _announce_the_same(one: PeerRecord, other: PeerRecord) -> bool:
    """Return whether two records have the same counts, as most successive records do; faster than comparing their
    heads.
    """
    are_joining = (one.state == "joining") is (other.state == "joining")
    return are_joining and (one.level, one.versions, one.digests) == (other.level, other.versions, other.digests)


def _heads_of(record: PeerRecord) -> Iterable[Head]:
    return () if record.state == "joining" else zip(record.versions, record.digests, strict=True)


def _add(counts: Counter[_Key], key: _Key, number: int) -> None:
    counts[key] += number
    if not counts[key]:
        del counts[key]
