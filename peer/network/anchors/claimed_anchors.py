"""Collects the evidence for a member's anchor: other members that have it, and the signed commits that lead to it.

All answers come from members and are checked here. `dht.records.lineages` decides on the result.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from averaging.lanes.handshake import HandshakePolicy
from averaging.signing.commit_chains import Chain, newest_run
from averaging.signing.commit_log import MAX_PAGE_BYTES
from averaging.signing.round_signatures import Checker
from averaging.transfer.client import commits_in, fetch_digest, fetch_log
from averaging.wire.field_checks import Limits
from averaging.wire.messages import Commit
from dht.ground.errors import PeerFault
from dht.ground.host import Host, PeerId
from dht.records.lineages import MAX_ANCHOR_VERSION
from peer.network.anchors.donors import Donors

MAX_LOG_PAGES = 3
"""Limit on pages of a log, which has 1 MiB, or more if its last commits are larger."""
NUM_RECENT = 16
"""Number of recent versions requested first: most forks are younger, and a log has up to 1 MiB."""

LEAST_GRACE_SECONDS = 4.0
GRACE_FACTOR = 4.0
"""Once more than half have answered, the others get this multiple of the elapsed time; a sleeping peer takes 15 s."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AnchorSupport:
    """The numbers of known members behind each anchor.

    Attributes:
        behind: members that have the claimed anchor, or an anchor on the way to it that this peer never had.
        num_own: members on this peer's own lineage, including this peer.
        num_elsewhere: the largest number of members that share an anchor on neither lineage.
        num_known: members that answered, and this peer.
    """

    behind: tuple[PeerId, ...]
    num_own: int
    num_elsewhere: int
    num_known: int


@dataclass
class Claims:
    """Asks members for their digests and commits.

    Attributes:
        donors: chooses the members to ask, and records their faults.
    """

    host: Host
    handshake_policy: HandshakePolicy
    limits: Limits
    checker: Checker
    donors: Donors

    async def digests(self, fragment: int, version: int, besides: PeerId | None = None) -> dict[PeerId, bytes]:
        """Return the digests that up to `MAX_WITNESSES` other members had at a version; empty for a member that does
        not know.

        Members that cannot be reached are left out.
        """
        names = [record.peer_id for record in self.donors.givers(fragment) if record.peer_id != besides]
        return await self.digests_of(self.donors.witnesses(names), fragment, version)

    async def digests_of(self, names: Sequence[PeerId], fragment: int, version: int) -> dict[PeerId, bytes]:
        """Return the digests that certain members had at a version; otherwise as `digests`."""
        async with asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(self._digest(name, fragment, version)) for name in names}
            await _most_and_a_while(tasks.values())
            for task in tasks.values():
                task.cancel()
        answers = {name: task.result() for name, task in tasks.items() if not task.cancelled()}
        return {name: answer for name, answer in answers.items() if answer is not None}

    async def chain(self, fragment: int, member: PeerId, known: Mapping[int, bytes], version: int) -> Chain | None:
        """Return a member's current anchor with its signed commits; None if it cannot be obtained.

        Args:
            known: anchors that this peer has or had, version -> digest as in messages. Signatures are checked from the
                newest of them from which the commits start; if there is none, for all commits.
            version: version of this peer's anchor.
        """
        try:
            found = await self._chain(fragment, member, max(0, version - NUM_RECENT))
            if found is not None and found.fork_from(known) is None and version > NUM_RECENT:
                found = await self._chain(fragment, member, 0)
            if found is None:
                return None
            fork = found.fork_from(known)
            found = found if fork is None else found.since(fork)
            for commit in found.commits:
                if objection := self.checker.objection(commit):
                    raise PeerFault(member, f"sent a commit that proves nothing: {objection}")
                await asyncio.sleep(0)
        except PeerFault as fault:
            self.donors.note_fault(member, fragment, fault)
            return None
        return found

    async def standing(
        self, fragment: int, member: PeerId, claimed: Chain, known: Mapping[int, bytes], own: tuple[int, bytes]
    ) -> AnchorSupport:
        """Count the members behind the anchor that `member` claims, and behind the `own` anchor (version, digest).

        Args:
            known: see `chain`.
        """
        fork = claimed.fork_from(known)
        theirs = {item for item in claimed.anchors().items() if fork is None or item[0] > fork}
        givers = {record.peer_id: record for record in self.donors.givers(fragment)}
        asked = self.donors.witnesses(name for name in givers if name != member)
        held, before = await asyncio.gather(
            self.digests_of(asked, fragment, claimed.version), self.digests_of(asked, fragment, own[0])
        )
        behind, num_own = [member] if member in givers else [], 1
        elsewhere: Counter[tuple[int, bytes]] = Counter()
        for name, digest in held.items():
            record = givers[name]
            head = record.versions[fragment], record.digests[fragment]
            # Records are slightly outdated; a requested digest is current.
            if digest == claimed.digest or (not digest and any(_is(head, anchor) for anchor in theirs)):
                behind.append(name)
            elif before.get(name) == own[1] or (not digest and any(_is(head, anchor) for anchor in known.items())):
                num_own += 1
            elif digest:
                elsewhere[claimed.version, digest] += 1
            else:  # members whose memory no longer reaches this version may all be on one side
                elsewhere[head if head[0] < claimed.version else (claimed.version, b"")] += 1
        return AnchorSupport(
            tuple(behind), num_own, max(elsewhere.values(), default=0), 1 + len(held) + (member in givers)
        )

    async def commits(self, fragment: int, member: PeerId, first: int) -> list[Commit]:
        """Return the newest signed commits of a member from version `first` on, without checking signatures.

        Raises:
            PeerFault: the member is gone, refused, or sent an invalid answer.
        """
        commits: list[Commit] = []
        for _ in range(MAX_LOG_PAGES):
            page = await fetch_log(self.host, self.handshake_policy, member, fragment, first)
            commits += commits_in(page, member, fragment, first, self.limits)
            first = commits[-1].version + 1 if commits else first
            if sum(map(len, page)) < MAX_PAGE_BYTES // 2:
                break
        return commits

    async def _chain(self, fragment: int, member: PeerId, first: int) -> Chain | None:
        commits = await self.commits(fragment, member, first)
        announced = self.donors.announced(member, fragment)
        version = commits[-1].version + 1 if commits else announced and announced[0]
        if version is None or version > MAX_ANCHOR_VERSION:
            return None
        digest = await self._ask(member, fragment, version)
        return Chain(newest_run(commits), version, digest) if digest else None

    async def _ask(self, member: PeerId, fragment: int, version: int) -> bytes:
        return await fetch_digest(self.host, self.handshake_policy, member, fragment, version)

    async def _digest(self, member: PeerId, fragment: int, version: int) -> bytes | None:
        try:
            return await self._ask(member, fragment, version)
        except PeerFault as fault:
            log.debug("no witness: %s", fault)
            return None


async def _most_and_a_while(tasks: Collection[asyncio.Task[bytes | None]]) -> None:
    """Wait until all tasks are done, or until more than half have an answer and the rest had some more time."""
    clock = asyncio.get_running_loop().time
    began_at, pending = clock(), set(tasks)
    until: float | None = None
    while pending and (until is None or clock() < until):
        seconds = None if until is None else until - clock()
        _, pending = await asyncio.wait(pending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        num_answers = sum(task.done() and task.result() is not None for task in tasks)
        if until is None and 2 * num_answers > len(tasks):
            until = began_at + max(LEAST_GRACE_SECONDS, GRACE_FACTOR * (clock() - began_at))


def _is(head: tuple[int, bytes], anchor: tuple[int, bytes]) -> bool:
    return head[0] == anchor[0] and anchor[1].startswith(head[1])
