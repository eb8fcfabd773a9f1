"""Fetches anchors from the swarm: what the swarm has, who gives it, and what happens to donors that fail.

Per fragment: one donor's header says what it has; other members are asked for their digest at that version; the state
with the most weight behind it is then fetched from everyone who has it (`averaging.transfer`). When all of them have
moved on to another version, only that fragment begins again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from averaging.catch_up import Header, fetch_commits, fetch_digest, fetch_header, fetch_state
from averaging.kept_chunks import KeptChunks
from averaging.links import Doorkeeper
from averaging.messages import Commit
from averaging.notary import Checker
from averaging.round import HISTORY_COMMITS, KEPT_COMMITS
from averaging.snapshots import Snapshot
from averaging.state_messages import chunk_lengths
from averaging.transfer import Transfer
from averaging.wire import Limits
from dht.errors import PeerFault, PeerUnreachable
from dht.host import Host, PeerId
from dht.records import PeerRecord
from dht.swarm import Side, heaviest_side

MAX_WITNESSES = 12
"""Other members asked for their digest, at once; those who share the donor's become donors too."""
FRAGMENTS_AT_ONCE = 2
"""One is agreed on while another is under way; donors hold that many snapshots."""
MAX_RESTARTS = 5
"""Of one fragment whose donors move on again and again; then one donor sends it in one piece."""
BUSY_SECONDS = 2.0
MAX_BUSY_ROUNDS = 60
"""Two minutes with every donor busy: then the caller decides."""
BLAME_SECONDS = 600.0
"""A donor of wrong chunks is not asked again for so long."""
FORK_SECONDS = 30.0
"""What a donor on the lighter side of a fork gives is not voted on again for so long; its next anchor is."""

log = logging.getLogger(__name__)


class HeldState(Protocol):
    """What the caller has of a fragment; `averaging.fragment_state.FragmentState` is one."""

    @property
    def num_values(self) -> int: ...
    @property
    def lineage_tokens(self) -> int: ...
    @property
    def digest(self) -> bytes: ...


class Members(Protocol):
    """Port: who is there; `peer.membership.Membership` is one."""

    def members(self) -> list[PeerRecord]:
        """Live members other than this one."""
        ...

    def suspect(self, peer_id: PeerId, reason: str) -> None:
        """The peer did not answer."""
        ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fragment's state as the swarm has it.

    Attributes:
        donors: who sent it, those who sent most first.
        confirmed_by: members that hold the same digest at the same version, the donor whose header it was included.
    """

    snapshot: Snapshot
    donors: tuple[PeerId, ...]
    confirmed_by: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """How much of what is fetched together has arrived."""

    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class _Agreed:
    header: Header
    first: PeerId
    confirmed_by: tuple[PeerId, ...]


class Fetcher:
    """State transfer as a joiner sees it.

    Args:
        checker: of the signatures under commits.
        kept: where chunks of `fetch_better` are kept for a restart; None keeps none.
    """

    def __init__(
        self,
        host: Host,
        doorkeeper: Doorkeeper,
        limits: Limits,
        members: Members,
        checker: Checker,
        kept: KeptChunks | None = None,
    ) -> None:
        self._checker = checker
        self._kept = kept
        self._host = host
        self._doorkeeper = doorkeeper
        self._limits = limits
        self._members = members
        self._blamed: dict[PeerId, float] = {}
        self._outvoted: dict[tuple[PeerId, int], tuple[bytes, float]] = {}

    # ------------------------------------------------------------------------------------------------ what is wanted

    async def fetch_better(
        self,
        states: Mapping[int, HeldState],
        adopt: Callable[[int, Fetched], Awaitable[None]],
        on_progress: Callable[[FetchProgress], None] = lambda progress: None,
    ) -> dict[int, tuple[PeerId, ...]]:
        """Fetch every fragment of which the swarm has something heavier than `states`, several at once.

        `adopt` is called with each as soon as it is there. Returns the donors of each fragment that was adopted.
        """
        wanted = [index for index, state in sorted(states.items()) if self._is_behind(index, state)]
        total_bytes = sum(8 * states[index].num_values for index in wanted)
        arrived = dict.fromkeys(wanted, 0)
        donors: dict[int, tuple[PeerId, ...]] = {}
        turn = asyncio.Semaphore(FRAGMENTS_AT_ONCE)

        async def fetch(index: int) -> None:
            def count(num_bytes: int) -> None:
                arrived[index] = num_bytes
                on_progress(FetchProgress(sum(arrived.values()), total_bytes))

            async with turn:
                names = self.best_first(index)
                found = await self._resume(index, states[index], count)
                if found is None:
                    found = await self.fetch(index, states[index].num_values, names, count, states[index], self._kept)
                if found is not None:
                    await adopt(index, found)
                    donors[index] = found.donors

        async with asyncio.TaskGroup() as group:
            for index in wanted:
                group.create_task(fetch(index))
        return donors

    def forget_kept(self) -> None:
        """All that was fetched is in use: a restart needs no chunks of it."""
        if self._kept is not None:
            self._kept.forget()

    async def _resume(self, fragment: int, state: HeldState, on_bytes: Callable[[int], None]) -> Fetched | None:
        """Go on with the download of an earlier process, if members still have that very state."""
        if self._kept is None:
            return None
        header = self._kept.header(fragment, len(chunk_lengths(state.num_values)))
        newest = max((record.versions[fragment] for record in self._givers(fragment)), default=0)
        # Older than that, what was committed since could not be replayed.
        if header is None or not _is_heavier(header, state) or newest > header.version + HISTORY_COMMITS:
            return None
        held = await self._ask_members(fragment, header.version)
        if not held or self._heaviest(fragment, held, {}).digest != header.digest:
            return None
        confirmed_by = tuple(name for name, digest in held.items() if digest == header.digest)
        agreed = _Agreed(self._with_known_tokens(fragment, header, confirmed_by), confirmed_by[0], confirmed_by)
        return await self._fetch_shared(fragment, state.num_values, agreed, on_bytes, self._kept)

    async def fetch_heaviest(
        self, fragment: int, state: HeldState, preferred: PeerId
    ) -> tuple[Snapshot | None, PeerId]:
        """One fragment as the swarm has it, when that is heavier than `state`; and the donor that sent most of it."""
        if not self._is_behind(fragment, state):
            return None, preferred
        found = await self.fetch(fragment, state.num_values, self.best_first(fragment), held=state)
        return (None, preferred) if found is None else (found.snapshot, found.donors[0])

    async def fetch_from(self, fragment: int, num_values: int, donors: Sequence[PeerId]) -> Snapshot | None:
        """What one of `donors`, asked in this order, has and enough members confirm; None when nothing is."""
        found = await self.fetch(fragment, num_values, donors)
        return None if found is None else found.snapshot

    async def fetch(
        self,
        fragment: int,
        num_values: int,
        candidates: Sequence[PeerId],
        on_bytes: Callable[[int], None] = lambda num_bytes: None,
        held: HeldState | None = None,
        kept: KeptChunks | None = None,
    ) -> Fetched | None:
        """One fragment of `num_values` values; None when no candidate has what enough members confirm.

        Args:
            candidates: whose header is asked for, in this order; the chunks come from all who confirm it.
            on_bytes: called with the bytes that have arrived so far; less again after a restart.
            held: nothing is fetched unless it is heavier than this.
            kept: where the chunks are kept.
        """
        for _ in range(MAX_RESTARTS):
            agreed = await self._agree(fragment, num_values, candidates)
            if agreed is None or (held is not None and not _is_heavier(agreed.header, held)):
                return None
            if kept is not None:
                kept.begin(fragment, agreed.header)
            elif len(agreed.confirmed_by) == 1:
                # Nobody to share the work with: one request brings all of it.
                whole = await self._fetch_whole(fragment, num_values, agreed.first, on_bytes)
                if whole is not None:
                    return whole
                continue
            found = await self._fetch_shared(fragment, num_values, agreed, on_bytes, kept)
            if found is not None:
                return found
        for donor in candidates:
            whole = await self._fetch_whole(fragment, num_values, donor, on_bytes)
            if whole is not None:
                return whole
        return None

    async def outvoted_by(self, fragment: int, version: int, digest: bytes, lineage_tokens: int) -> tuple[PeerId, ...]:
        """Members whose side at `version` weighs more than that of this peer, which has `digest` there; else none.

        Args:
            lineage_tokens: what this peer announces.
        """
        held = await self._ask_members(fragment, version)
        held[self._host.peer_id] = digest
        heaviest = self._heaviest(fragment, held, {self._host.peer_id: lineage_tokens})
        return () if heaviest.digest == digest else tuple(name for name, one in held.items() if one == heaviest.digest)

    def _is_behind(self, fragment: int, state: HeldState) -> bool:
        ours = (state.lineage_tokens, state.digest[:8])
        return any(
            (record.lineage_tokens[fragment], record.digests[fragment]) > ours for record in self._givers(fragment)
        )

    def _givers(self, fragment: int) -> list[PeerRecord]:
        records = [record for record in self._members.members() if len(record.lineage_tokens) > fragment]
        return [record for record in records if record.state != "joining" and not self._is_blamed(record.peer_id)]

    def best_first(self, fragment: int) -> list[PeerId]:
        """Donors by what they announce; equal ones in an order of their own for every joiner."""
        records = self._givers(fragment)
        sides: dict[tuple[int, bytes], list[PeerRecord]] = {}
        for record in records:
            sides.setdefault((record.versions[fragment], record.digests[fragment]), []).append(record)

        def rank(record: PeerRecord) -> tuple[bool, int, bytes]:
            side = sides[(record.versions[fragment], record.digests[fragment])]
            is_alone = len(side) < 2 and len(records) > 2
            return (is_alone, -record.lineage_tokens[fragment], _spread(self._host.peer_id, record.peer_id))

        return [record.peer_id for record in sorted(records, key=rank)]

    # -------------------------------------------------------------------------------------------------- the agreement

    async def _agree(self, fragment: int, num_values: int, candidates: Sequence[PeerId]) -> _Agreed | None:
        for _ in range(MAX_BUSY_ROUNDS):
            num_busy = 0
            for donor in candidates:
                if self._is_blamed(donor):
                    continue
                try:
                    header = await fetch_header(self._host, self._doorkeeper, donor, fragment, num_values)
                except PeerFault as fault:
                    self._note_fault(donor, fragment, fault)
                    continue
                if isinstance(header, str):
                    num_busy += header == "busy"
                    continue
                if self._is_outvoted(donor, fragment, header.digest):
                    continue
                confirmed_by = await self._confirm(fragment, donor, header.version, header.digest)
                if confirmed_by is not None:
                    return _Agreed(self._with_known_tokens(fragment, header, confirmed_by), donor, confirmed_by)
            if not num_busy:
                return None
            await asyncio.sleep(BUSY_SECONDS)
        return None

    async def _confirm(self, fragment: int, donor: PeerId, version: int, digest: bytes) -> tuple[PeerId, ...] | None:
        """Who holds this digest at this version, the donor included; None when the other members outweigh them."""
        held = {donor: digest} | await self._ask_members(fragment, version, besides=donor)
        heaviest = self._heaviest(fragment, held, {})
        if heaviest.digest != digest:
            log.warning(
                "version %d of fragment %d is not taken from donor %s: its digest is not that of %d others",
                version,
                fragment,
                donor[-8:],
                heaviest.num_members,
            )
            self._outvoted[donor, fragment] = digest, asyncio.get_running_loop().time() + FORK_SECONDS
            return None
        return tuple(name for name, other in held.items() if other == digest)

    async def _ask_members(self, fragment: int, version: int, besides: PeerId | None = None) -> dict[PeerId, bytes]:
        """The digests that up to `MAX_WITNESSES` other members had at a version, as far as they know."""
        names = [record.peer_id for record in self._givers(fragment) if record.peer_id != besides]
        asked = sorted(names, key=lambda name: _spread(self._host.peer_id, name))[:MAX_WITNESSES]
        answers = await asyncio.gather(*(self._ask_digest(name, fragment, version) for name in asked))
        return {name: answer for name, answer in zip(asked, answers, strict=True) if answer}

    def _heaviest(self, fragment: int, held: Mapping[PeerId, bytes], own_tokens: dict[PeerId, int]) -> Side:
        """Of the digests that peers have at one version."""
        tokens = {record.peer_id: record.lineage_tokens[fragment] for record in self._givers(fragment)} | own_tokens

        def side(shared: bytes) -> Side:
            names = [name for name, digest in held.items() if digest == shared]
            return Side(shared, max((tokens.get(name, 0) for name in names), default=0), len(names))

        return heaviest_side(side(digest) for digest in set(held.values()))

    async def _ask_digest(self, witness: PeerId, fragment: int, version: int) -> bytes:
        try:
            return await fetch_digest(self._host, self._doorkeeper, witness, fragment, version)
        except PeerFault as fault:
            log.debug("no witness: %s", fault)
            return b""

    def _with_known_tokens(self, fragment: int, header: Header, confirmed_by: Sequence[PeerId]) -> Header:
        """The digest does not cover the tokens: what most members announce for this very anchor counts."""
        announced = [
            record.lineage_tokens[fragment]
            for record in self._givers(fragment)
            if record.peer_id in confirmed_by
            and (record.versions[fragment], record.digests[fragment]) == (header.version, header.digest[:8])
        ]
        if announced and announced.count(header.lineage_tokens) == 0:
            return replace(header, lineage_tokens=max(announced, key=lambda tokens: (announced.count(tokens), tokens)))
        return header

    # --------------------------------------------------------------------------------------------------- the transfer

    async def _fetch_shared(
        self,
        fragment: int,
        num_values: int,
        agreed: _Agreed,
        on_bytes: Callable[[int], None],
        kept: KeptChunks | None,
    ) -> Fetched | None:
        arrived = 0

        def count(num_bytes: int) -> None:
            nonlocal arrived
            arrived += num_bytes
            on_bytes(arrived)

        on_bytes(0)
        transfer = Transfer(self._host, self._doorkeeper, fragment, agreed.header, num_values, count, kept)
        await transfer.take_kept()
        donors = sorted(agreed.confirmed_by, key=lambda name: _spread(self._host.peer_id, name))
        try:
            snapshot = await transfer.run(donors)
        except PeerFault as fault:
            log.warning("fragment %d, which %d members share, was refused: %s", fragment, len(donors), fault)
            return None
        for donor, failure in transfer.faults.items():
            self._note_fault(donor, fragment, failure)
        if snapshot is None:
            return None
        # When all of it had been kept, nobody needed to send anything: it is theirs all the same.
        transfer.given_bytes = transfer.given_bytes or dict.fromkeys(agreed.confirmed_by, 0)
        givers = tuple(sorted(transfer.given_bytes, key=lambda donor: (-transfer.given_bytes[donor], donor)))
        commits = await self._commits(fragment, snapshot, [*givers, *donors])
        return Fetched(replace(snapshot, commits=commits), givers, agreed.confirmed_by)

    async def _fetch_whole(
        self, fragment: int, num_values: int, donor: PeerId, on_bytes: Callable[[int], None]
    ) -> Fetched | None:
        arrived = 0

        def count(num_bytes: int) -> None:
            nonlocal arrived
            arrived += num_bytes
            on_bytes(arrived)

        announced = self._announced(donor, fragment)
        if self._is_blamed(donor) or (announced and self._is_outvoted(donor, fragment, announced)):
            return None
        try:
            snapshot = await fetch_state(self._host, self._doorkeeper, donor, fragment, num_values, count)
        except PeerFault as fault:
            self._note_fault(donor, fragment, fault)
            return None
        if snapshot is None:
            return None
        confirmed_by = await self._confirm(fragment, donor, snapshot.version, snapshot.digest)
        if confirmed_by is None:
            return None
        commits = await self._commits(fragment, snapshot, [donor])
        return Fetched(replace(snapshot, commits=commits), (donor,), confirmed_by)

    async def _commits(self, fragment: int, snapshot: Snapshot, donors: Sequence[PeerId]) -> tuple[Commit, ...]:
        """Recent commits of the snapshot's own lineage, up to and beyond its version, from the first who has them.

        A donor may have changed sides after it gave the snapshot; what it tells then is of another lineage.
        """
        first = max(0, snapshot.version - KEPT_COMMITS)
        for donor in dict.fromkeys(donors):
            try:
                args = (self._host, self._doorkeeper, donor, fragment, first, self._limits)
                commits = {commit.version: commit for commit in await fetch_commits(*args)}
                for commit in commits.values():
                    if objection := self._checker.objection(commit):
                        raise PeerFault(donor, f"gave an unsigned commit: {objection}")
                    await asyncio.sleep(0)
                leaving = commits.get(snapshot.version)
                if leaving is not None:
                    fits = leaving.anchor_digest == snapshot.digest[: len(leaving.anchor_digest)]
                else:
                    asked = (self._host, self._doorkeeper, donor, fragment, snapshot.version)
                    fits = await fetch_digest(*asked) == snapshot.digest
                if fits:
                    return tuple(commits[version] for version in sorted(commits))
            except PeerFault as fault:
                self._note_fault(donor, fragment, fault)
        return ()

    # ------------------------------------------------------------------------------------------------------ the blame

    def _note_fault(self, donor: PeerId, fragment: int, fault: PeerFault) -> None:
        if isinstance(fault, PeerUnreachable):
            self._members.suspect(donor, fault.what)
        else:
            self._blame(donor, fragment, fault.what)

    def _blame(self, donor: PeerId, fragment: int, what: str) -> None:
        log.warning("donor %s of fragment %d is avoided for %.0f s: %s", donor[-8:], fragment, BLAME_SECONDS, what)
        self._blamed[donor] = asyncio.get_running_loop().time() + BLAME_SECONDS

    def _is_outvoted(self, donor: PeerId, fragment: int, digest: bytes) -> bool:
        """Whether most others had another digest than this one, or one that begins so."""
        refused, until = self._outvoted.get((donor, fragment), (b"", 0.0))
        return asyncio.get_running_loop().time() < until and refused.startswith(digest)

    def _announced(self, donor: PeerId, fragment: int) -> bytes:
        records = [record for record in self._givers(fragment) if record.peer_id == donor]
        return records[0].digests[fragment] if records else b""

    def _is_blamed(self, peer_id: PeerId) -> bool:
        return peer_id in self._blamed and asyncio.get_running_loop().time() < self._blamed[peer_id]


def _is_heavier(header: Header, state: HeldState) -> bool:
    return (header.lineage_tokens, header.digest) > (state.lineage_tokens, state.digest)


def _spread(joiner: PeerId, donor: PeerId) -> bytes:
    """Puts donors in an order of its own for each joiner, so that ten joiners do not all ask the same one first."""
    return hashlib.sha256(f"{joiner}|{donor}".encode()).digest()
