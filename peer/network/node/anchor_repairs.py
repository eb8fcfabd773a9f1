"""Finds out when this peer's anchors are not the swarm's, and fetches those that count.

What a member announces, in a record or in a message, is only a reason to look. Then it shows the signed commits that
lead to its anchor, other members are asked what they have, and `dht.records.lineages.replaces` decides. Nothing is
adopted because nobody contradicts it. What is fetched may be another anchor than the one that was weighed. Members go
on meanwhile, and a hostile one hands out what it likes. Then that one is weighed in its own right, or nothing is
adopted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from averaging.exchange.exchange import Exchange
from averaging.fragment.runtime import FragmentRuntime
from averaging.rounds.round_facts import Fact
from averaging.signing.commit_chains import Chain, newest_run
from averaging.wire.messages import Commit
from dht.ground.bounds import Pauses
from dht.ground.host import PeerId
from dht.records.lineages import MAX_LINEAGE_TOKENS, Side, replaces
from dht.records.peer_record import PeerRecord
from peer.events.anchor_events import AnchorRepair
from peer.network.anchors.fetcher import Fetched, Fetcher
from peer.network.membership.membership import Membership
from peer.network.node.fragment_memory import adopt_snapshot

MAX_WEIGHINGS = 3
"""Times to weigh one claim, while rounds close here before the others have answered."""
MAX_LOOKS = 4
"""Claims looked into one after the other, before an audit or repair ends; the next one goes on."""
FIRST_REFUSAL_SECONDS = 0.5
LONGEST_REFUSAL_SECONDS = 60.0
"""A member whose claim does not count is not listened to for this long, twice as long each time. The first is short:
the others of its side may just be applying the round that it is at."""
LAGGING_SECONDS = 2.0
"""Members at an earlier version are mostly on the way to its own: these are given this long to show it."""
MAX_REFUSALS = 1024


@dataclass(frozen=True, slots=True)
class _Doubts:
    """Announcements in records of other members that contradict this peer's anchor.

    Attributes:
        ahead: of each anchor of a later version and more tokens, as its members say, one of them: the next one after
            this peer, so that not everybody who is behind asks the same one. Those of members that have worked come
            first, then those that most members have.
        against: of each other anchor that is no later one of this peer's lineage a member; chosen in the same way.
    """

    ahead: tuple[PeerId, ...]
    against: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class _Better:
    """An anchor that counts more than its own.

    Attributes:
        behind: who has it.
        lineage_tokens: as far as signed commits tell; None: as most of those announce it.
        is_fork: it does not follow its own.
    """

    chain: Chain
    behind: tuple[PeerId, ...]
    lineage_tokens: int | None
    is_fork: bool


@dataclass
class AnchorRepairs:
    """Audits and repairs of all fragments of one peer.

    Attributes:
        before_unproven: called before an anchor is taken over to which no signed commits lead from this peer's.
    """

    exchange: Exchange
    fetcher: Fetcher
    membership: Membership
    report: Callable[[Fact], None]
    before_unproven: Callable[[], Awaitable[None]]
    _refused: Pauses[tuple[PeerId, int]] = field(
        default_factory=lambda: Pauses(FIRST_REFUSAL_SECONDS, LONGEST_REFUSAL_SECONDS, MAX_REFUSALS), init=False
    )
    _looking: set[tuple[PeerId, int]] = field(default_factory=set, init=False)

    def behind(self) -> dict[int, PeerId]:
        """Fragments of which a member announces more committed tokens than ours have; and that member."""
        doubts = {fragment.index: self._doubts(fragment).ahead for fragment in self.exchange.fragments}
        return {index: ahead[0] for index, ahead in doubts.items() if ahead}

    async def audit(self) -> None:
        """Compare announced anchors with our own; cheap as long as they agree."""
        for fragment in self.exchange.fragments:
            if self.exchange.applying.is_repairing(fragment):
                continue
            doubts = self._doubts(fragment)
            if doubts.ahead:
                self.exchange.applying.say_version(fragment, doubts.ahead[0])
            for peer_id in doubts.against[:MAX_LOOKS]:
                if await self._look(fragment, peer_id, ""):
                    break

    async def repair(self, index: int, peer_id: PeerId, reason: str) -> None:
        """Look into what `peer_id` claims; `Applying.looked_into` follows in any case."""
        fragment = self.exchange.fragments[index]
        try:
            # The one that knows of a better anchor may be gone by now; any member that has gone on will do.
            doubts = self._doubts(fragment)
            names = dict.fromkeys((peer_id, *doubts.ahead, *doubts.against))
            for name in [name for name in names if not self._is_refused(name, index)][:MAX_LOOKS]:
                if await self._look(fragment, name, reason):
                    return
        finally:
            self.exchange.applying.looked_into(fragment, peer_id)

    def _doubts(self, fragment: FragmentRuntime) -> _Doubts:
        state, index, me = fragment.state, fragment.index, self.exchange.me
        has_worked = self.exchange.guard.presence.has_worked
        doubtful = {head for head in self.membership.heads(index) if not fragment.had(*head)}
        ahead: dict[tuple[int, bytes], PeerId] = {}
        against: dict[tuple[int, bytes], PeerId] = {}
        num_members: Counter[tuple[int, bytes]] = Counter()
        if not doubtful:
            return _Doubts((), ())
        # Records are free: those of members that have worked are looked into first.
        for record in sorted(self.membership.members(), key=lambda record: not has_worked(record.peer_id)):
            if len(record.versions) <= index or record.state == "joining":
                continue
            head, tokens = (record.versions[index], record.digests[index]), record.lineage_tokens[index]
            if head not in doubtful:
                continue
            num_members[head] += 1
            chosen = ahead if head[0] > state.version and tokens > state.lineage_tokens else against
            is_next = head in chosen and chosen[head] < me < record.peer_id
            if head not in chosen or (is_next and has_worked(record.peer_id) >= has_worked(chosen[head])):
                chosen[head] = record.peer_id

        def order(head: tuple[int, bytes]) -> tuple[bool, int, bool, PeerId]:
            return not has_worked(ahead[head]), -num_members[head], ahead[head] < me, ahead[head]

        first_ahead = sorted(ahead, key=order)
        return _Doubts(
            tuple(name for name in (ahead[head] for head in first_ahead) if not self._is_refused(name, index)),
            tuple(
                sorted((against[head] for head in sorted(against, reverse=True)), key=lambda name: not has_worked(name))
            ),
        )

    def _is_refused(self, peer_id: PeerId, index: int) -> bool:
        return self._refused.holds((peer_id, index), asyncio.get_running_loop().time())

    async def _look(self, fragment: FragmentRuntime, peer_id: PeerId, reason: str) -> bool:
        """Whether the anchor that a member claims was taken over."""
        key = (peer_id, fragment.index)
        if key in self._looking or self._is_refused(*key):
            return False
        self._looking.add(key)
        try:
            found = await self._weigh(fragment, peer_id)
            if found is None:
                self._refuse(key)
                # It may be the one that has to give in, and not know it. Or a round of few led there, whose commit was
                # not followed yet: asked for again, it is by now.
                fragment.machine.later.forget(peer_id)
                self.exchange.applying.say_version(fragment, peer_id)
                return False
            if not self.exchange.applying.begin_repair(fragment):
                return False  # somebody else's claim was faster
            try:
                if found.is_fork:
                    version, num_others = fragment.state.version, len(found.behind)
                    self.report(AnchorRepair(fragment.index, version, is_done=False, num_others=num_others))
                reason = reason or f"more weight stands behind that of {len(found.behind)} other members"
                is_replaced = await self._replace(fragment, found, reason)
            finally:
                self.exchange.applying.end_repair(fragment)
            if is_replaced is None:
                self._refuse(key)
            else:
                self._refused.forgive(key)
            return bool(is_replaced)
        finally:
            self._looking.discard(key)

    def _refuse(self, key: tuple[PeerId, int]) -> None:
        self._refused.begin(key, asyncio.get_running_loop().time())

    async def _weigh(self, fragment: FragmentRuntime, peer_id: PeerId) -> _Better | None:
        """Return the anchor that a member claims, if it counts."""
        known, version = fragment.anchors(), fragment.state.version
        chain = await self.fetcher.claims.chain(fragment.index, peer_id, known, version)
        if chain is None:
            return None
        better = None
        for _ in range(MAX_WEIGHINGS):
            if fragment.had(chain.version, chain.digest):
                return None
            digest = fragment.state.digest
            better = await self._weigh_chain(fragment, peer_id, chain)
            if better is not None or fragment.state.digest == digest:
                break
        is_young = self._refused.seconds((peer_id, fragment.index)) < LAGGING_SECONDS
        if is_young and chain.version < version and chain.fork_from(known) is None:
            return None  # after a restart older anchors of this peer's lineage are forgotten, too
        return better

    async def _weigh_chain(self, fragment: FragmentRuntime, peer_id: PeerId, chain: Chain) -> _Better | None:
        """Return the anchor that a chain leads to, if it counts; its signatures are checked, and `peer_id` has it."""
        version, digest, known = fragment.state.version, fragment.state.digest, fragment.anchors()
        standing = await self.fetcher.claims.standing(fragment.index, peer_id, chain, known, (version, digest))
        # Asking took a while, in which a round may have closed. And nobody is left to fetch it from if it was blamed.
        if fragment.state.digest != digest or not standing.behind:
            return None
        if len(standing.behind) == 1 and chain.commits and self._knows_other_members_of(chain.commits[-1], peer_id):
            return None
        fork = chain.fork_from(known)
        since_fork = None if fork is None else fragment.log.tokens_since(fork, version)
        are_comparable = since_fork is not None and not self.exchange.guard.chain_objection(
            chain.commits, fragment.machine.timing
        )
        own_tokens = since_fork if since_fork is not None and are_comparable else fragment.log.tokens
        is_believed = are_comparable or since_fork is None
        own = Side(digest, own_tokens, standing.num_own, version)
        other = Side(chain.digest, chain.tokens if is_believed else 0, len(standing.behind), chain.version)
        num_elsewhere = standing.num_elsewhere
        if not replaces(own, other, standing.num_known, are_comparable=are_comparable, num_elsewhere=num_elsewhere):
            return None
        is_proven = are_comparable and since_fork is not None
        tokens = fragment.state.lineage_tokens - (since_fork or 0) + chain.tokens if is_proven else None
        return _Better(chain, standing.behind, tokens, fork != version)

    def _knows_other_members_of(self, commit: Commit, claimed_by: PeerId) -> bool:
        """Whether live members took part in a commit whose anchor `claimed_by` alone claims.

        A commit does not sign the anchor that it leads to: one of its members could hand out any anchor with it. The
        others confirm the real one as soon as they have applied the commit, or drop out of the live members.
        """
        others = {entry.peer_id for entry in commit.roster} - {claimed_by, self.exchange.me}
        return any(record.peer_id in others for record in self.membership.members())

    async def _replace(self, fragment: FragmentRuntime, better: _Better, reason: str) -> bool | None:
        """Whether an anchor was taken over; None when something else than what counts was handed out."""
        index = fragment.index
        num_values, voters = fragment.state.num_values, frozenset(better.behind)
        fetched = await self.fetcher.fetch(index, num_values, better.behind, voters=voters)
        # Fetching took a while, in which this peer may have come to that anchor by itself, and gone on from it.
        if fetched is None or fragment.had(fetched.snapshot.version, fetched.snapshot.digest):
            return False
        found = fetched.snapshot
        commits = _of_one_lineage(better.chain.commits, found.commits)
        if commits is None:
            claimed = await self.fetcher.claims.chain(
                index, better.behind[0], fragment.anchors(), fragment.state.version
            )
            if claimed is None or not set(better.chain.commits) <= set(claimed.commits):
                return False  # what was weighed was the commits of one side and the anchor of another
            commits = {commit.version: commit for commit in better.chain.commits}
        weighed = await self._weigh_fetched(fragment, better, fetched)
        if weighed is None:
            return None
        tokens = weighed.lineage_tokens
        if tokens is None:
            await self.before_unproven()
        else:
            found = replace(found, lineage_tokens=min(tokens, MAX_LINEAGE_TOKENS))
        snapshot, shown = found, tuple(commits[version] for version in sorted(commits))
        await self.exchange.applying.adopt(fragment, lambda state: adopt_snapshot(state, snapshot), shown)
        self.report(AnchorRepair(index, snapshot.version, is_done=True, reason=reason))
        return True

    async def _weigh_fetched(self, fragment: FragmentRuntime, better: _Better, fetched: Fetched) -> _Better | None:
        """Return the weighed anchor, or a later one of its members if that counts by itself; None: another one."""
        chain, found = better.chain, fetched.snapshot
        if found.version == chain.version:
            return better if found.digest == chain.digest else None
        commits = {commit.version: commit for commit in (*chain.commits, *found.commits)}
        run = newest_run([commits[version] for version in sorted(commits) if version < found.version])
        known = fragment.anchors()
        later = Chain(run if run and run[-1].version + 1 == found.version else (), found.version, found.digest)
        fork = later.fork_from(known)
        later = later if fork is None else later.since(fork)
        return await self._weigh_chain(fragment, fetched.donors[0], later)


def _of_one_lineage(weighed: Sequence[Commit], given: Sequence[Commit]) -> dict[int, Commit] | None:
    """Version -> commit; None when they contradict each other: a member changed sides between two of its answers."""
    commits = {commit.version: commit for commit in given}
    if any(commits.get(commit.version, commit) != commit for commit in weighed):
        return None
    return commits | {commit.version: commit for commit in weighed}


def holds(record: PeerRecord, fragment: int, lineage_tokens: int) -> bool:
    """Whether a member can give newcomers at least these committed tokens of a fragment."""
    known = record.lineage_tokens
    return record.state in ("training", "serving") and len(known) > fragment and known[fragment] >= lineage_tokens
