"""Detects when this peer's anchors differ from the swarm's, and fetches the anchors that count.

A member's announcement, in a record or a message, is only a reason to investigate. Then the member must show the signed
commits that lead to its anchor, other members are asked for theirs, and `dht.records.lineages.replaces` decides. No
anchor is adopted only because no member contradicts it. The fetched anchor may differ from the weighed one, because
members go on meanwhile, and a hostile one may send any anchor. The fetched anchor is then weighed itself, or nothing is
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
from dht.records.lineages import MAX_LINEAGE_TOKENS, Side, is_majority, replaces
from dht.records.peer_record import PeerRecord
from peer.events.anchor_events import AnchorRepair
from peer.network.anchors.fetcher import Fetched, Fetcher
from peer.network.membership.membership import Membership
from peer.network.node.fragment_memory import adopt_snapshot

MAX_WEIGHINGS = 3
"""Number of times to weigh one claim, if rounds close here before the others have answered."""
MAX_LOOKS = 4
"""Number of claims investigated before an audit or repair ends; the next one continues."""
FIRST_REFUSAL_SECONDS = 0.5
LONGEST_REFUSAL_SECONDS = 60.0
"""Time for which claims of a member are ignored after one that does not count, doubled each time. It starts short:
the others of its side may just be applying the round that it is at."""
LAGGING_SECONDS = 2.0
"""Members at an earlier version are mostly on the way to this peer's version; they get this time to show it."""
MAX_REFUSALS = 1024


@dataclass(frozen=True, slots=True)
class _Better:
    """An anchor that counts more than this peer's own.

    Attributes:
        behind: the members that have the anchor.
        lineage_tokens: tokens according to signed commits; None: as announced by most of those members.
        is_fork: the anchor does not follow this peer's own.
    """

    chain: Chain
    behind: tuple[PeerId, ...]
    lineage_tokens: int | None
    is_fork: bool


@dataclass
class AnchorRepairs:
    """Audits and repairs of all fragments of one peer.

    Attributes:
        before_unproven: called before adopting an anchor to which no signed commits lead from this peer's anchor.
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
        """Return fragments of which a member announces more committed tokens than this peer has, with that member."""
        doubts = {fragment.index: self._doubts(fragment)[0] for fragment in self.exchange.fragments}
        return {index: ahead[0] for index, ahead in doubts.items() if ahead}

    async def audit(self) -> None:
        """Compare announced anchors with this peer's; cheap as long as they agree."""
        for fragment in self.exchange.fragments:
            if self.exchange.applying.is_repairing(fragment):
                continue
            ahead, against = self._doubts(fragment)
            if ahead:
                self.exchange.applying.say_version(fragment, ahead[0])
            for peer_id in against[:MAX_LOOKS]:
                if await self._look(fragment, peer_id, ""):
                    break

    async def repair(self, index: int, peer_id: PeerId, reason: str) -> None:
        """Investigate the claim of `peer_id`; `Applying.looked_into` follows in any case."""
        fragment = self.exchange.fragments[index]
        try:
            # The member that reported a better anchor may be gone by now; any member that has gone on can replace it.
            ahead, against = self._doubts(fragment)
            names = dict.fromkeys((peer_id, *ahead, *against))
            for name in [name for name in names if not self._is_refused(name, index)][:MAX_LOOKS]:
                if await self._look(fragment, name, reason):
                    return
        finally:
            self.exchange.applying.looked_into(fragment, peer_id)

    def _doubts(self, fragment: FragmentRuntime) -> tuple[list[PeerId], list[PeerId]]:
        """Return (ahead, against): members whose announced anchor contradicts this peer's.

        ahead: for each anchor of a later version and more tokens, according to its members, one such member: the next
        one after this peer, so that not all peers behind ask the same member. Members that have worked come first, then
        the anchors of most members. against: for each other anchor that does not follow this peer's anchor, one such
        member; chosen in the same way.
        """
        state, index, me = fragment.state, fragment.index, self.exchange.me
        has_worked = self.exchange.guard.presence.has_worked
        doubtful = {head for head in self.membership.heads(index) if not fragment.had(*head)}
        ahead: dict[tuple[int, bytes], PeerId] = {}
        against: dict[tuple[int, bytes], PeerId] = {}
        num_members: Counter[tuple[int, bytes]] = Counter()
        if not doubtful:
            return [], []
        # Records are free, so those of members that have worked are investigated first.
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
        of_others = [against[head] for head in sorted(against, reverse=True)]
        return (
            [name for name in (ahead[head] for head in first_ahead) if not self._is_refused(name, index)],
            sorted(of_others, key=lambda name: not has_worked(name)),
        )

    def _is_refused(self, peer_id: PeerId, index: int) -> bool:
        return self._refused.holds((peer_id, index), asyncio.get_running_loop().time())

    async def _look(self, fragment: FragmentRuntime, peer_id: PeerId, reason: str) -> bool:
        """Return whether the anchor that a member claims was adopted."""
        key = (peer_id, fragment.index)
        if key in self._looking or self._is_refused(*key):
            return False
        self._looking.add(key)
        try:
            found = await self._weigh(fragment, peer_id)
            if found is None:
                self._refuse(key)
                # Perhaps the member must adopt this peer's anchor, and does not know it yet. Or a small round led to
                # its anchor, and its commit was not applied here yet; that commit is requested again.
                fragment.machine.later.forget(peer_id)
                self.exchange.applying.say_version(fragment, peer_id)
                return False
            if not self.exchange.applying.begin_repair(fragment):
                return False  # another member's claim was faster
            try:
                if found.is_fork:
                    version, num_others = fragment.state.version, len(found.behind)
                    self.report(AnchorRepair(fragment.index, version, is_done=False, num_others=num_others))
                reason = reason or f"the anchor of {len(found.behind)} other members has more weight"
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
            return None  # after a restart, earlier anchors of this peer's lineage are also forgotten
        return better

    async def _weigh_chain(self, fragment: FragmentRuntime, peer_id: PeerId, chain: Chain) -> _Better | None:
        """Return the anchor that a chain leads to, if it counts; the signatures are already checked, and `peer_id` has
        it.
        """
        version, digest, known = fragment.state.version, fragment.state.digest, fragment.anchors()
        standing = await self.fetcher.claims.standing(fragment.index, peer_id, chain, known, (version, digest))
        # A round may have closed during the requests. And a blamed member cannot be a donor.
        if fragment.state.digest != digest or not standing.behind:
            return None
        if len(standing.behind) == 1 and chain.commits and self._knows_other_members_of(chain.commits[-1], peer_id):
            return None
        fork = chain.fork_from(known)
        if _denies_own_step(chain, fork, fragment) and not is_majority(len(standing.behind), standing.num_known):
            return None
        since_fork = None if fork is None else fragment.log.tokens_since(fork, version)
        are_comparable = since_fork is not None and not self.exchange.guard.chain_objection(
            chain.commits, fragment.machine.timing
        )
        own_tokens = since_fork if since_fork is not None and are_comparable else fragment.log.tokens
        is_believed = are_comparable or since_fork is None
        # Members that still have this peer's anchor are no side against later commits on it.
        guard = self.exchange.guard
        is_continued = fork == version and guard.follows(chain.commits, fragment.machine)
        if fork == version and not is_continued and not guard.presence.knows_workers and len(standing.behind) == 1:
            return None  # in a first round, the claim of a single member waits, as its commit would
        own = Side(digest, own_tokens, 1 if is_continued else standing.num_own, version)
        other = Side(chain.digest, chain.tokens if is_believed else 0, len(standing.behind), chain.version)
        num_elsewhere = standing.num_elsewhere
        if not replaces(own, other, standing.num_known, are_comparable=are_comparable, num_elsewhere=num_elsewhere):
            return None
        is_proven = are_comparable and since_fork is not None
        tokens = fragment.state.lineage_tokens - (since_fork or 0) + chain.tokens if is_proven else None
        return _Better(chain, standing.behind, tokens, fork != version)

    def _knows_other_members_of(self, commit: Commit, claimed_by: PeerId) -> bool:
        """Return whether live members took part in a commit whose anchor only `claimed_by` claims.

        A commit does not sign the anchor that it leads to, so one of its members could send any anchor with it. The
        other members confirm the real anchor once they have applied the commit, or are no longer live.
        """
        others = {entry.peer_id for entry in commit.roster} - {claimed_by, self.exchange.me}
        return any(record.peer_id in others for record in self.membership.members())

    async def _replace(self, fragment: FragmentRuntime, better: _Better, reason: str) -> bool | None:
        """Return whether an anchor was adopted; None if the members sent an anchor that does not count."""
        index = fragment.index
        num_values, voters = fragment.state.num_values, frozenset(better.behind)
        fetched = await self.fetcher.fetch(index, num_values, better.behind, voters=voters)
        # Meanwhile this peer may have reached that anchor by itself, and gone on from it.
        if fetched is None or fragment.had(fetched.snapshot.version, fetched.snapshot.digest):
            return False
        found = fetched.snapshot
        commits = _of_one_lineage(better.chain.commits, found.commits)
        if commits is None:
            claimed = await self.fetcher.claims.chain(
                index, better.behind[0], fragment.anchors(), fragment.state.version
            )
            if claimed is None or not set(better.chain.commits) <= set(claimed.commits):
                return False  # the commits of one side were weighed with the anchor of the other
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
        """Return the weighed anchor, or a later anchor of its members if that counts by itself; None for any other
        anchor.
        """
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


def _denies_own_step(chain: Chain, fork: int | None, fragment: FragmentRuntime) -> bool:
    """Return whether a chain leads by a commit that this peer applied to another anchor than it did here.

    Only the anchor may then be false. The digests are those since this peer last adopted an anchor.
    """
    log = fragment.log
    if fork is None or not {fork, fork + 1} <= log.digests.keys():
        return False
    return any(commit.version == fork and commit == log.newest.get(fork) for commit in chain.commits)


def _of_one_lineage(weighed: Sequence[Commit], given: Sequence[Commit]) -> dict[int, Commit] | None:
    """Return version -> commit; None if commits contradict each other, because a member changed sides between two
    answers.
    """
    commits = {commit.version: commit for commit in given}
    if any(commits.get(commit.version, commit) != commit for commit in weighed):
        return None
    return commits | {commit.version: commit for commit in weighed}


def holds(record: PeerRecord, fragment: int, lineage_tokens: int) -> bool:
    """Return whether a member can give newcomers at least `lineage_tokens` committed tokens of a fragment."""
    known = record.lineage_tokens
    return record.state in ("training", "serving") and len(known) > fragment and known[fragment] >= lineage_tokens
