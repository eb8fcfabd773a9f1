"""Everything one fragment needs while its rounds run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from averaging.cells.machine import CellRoundMachine
from averaging.fragment.lost_work import Receipts
from averaging.fragment.next_digest import DigestAhead
from averaging.fragment.shard_store import ShardStore
from averaging.outer.fragment_state import FragmentState
from averaging.rounds.events import View
from averaging.rounds.line_budget import LineBudget
from averaging.rounds.machine import RoundMachine
from averaging.signing.commit_log import CommitLog
from averaging.wire.messages import DIGEST_BYTES, HISTORY_COMMITS, Commit, VersionIs
from dht.host import PeerId
from dht.records.lineages import is_majority

T = TypeVar("T")


class Compute(Protocol):
    """Port: where heavy arithmetic runs; a thread in real life, inline in virtual time."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass
class FragmentRuntime:
    """Everything one fragment needs while its rounds run."""

    index: int
    state: FragmentState
    machine: RoundMachine
    store: ShardStore
    changing: Callable[[], AbstractContextManager[object]] = nullcontext
    persist: Callable[[], None] = lambda: None
    result_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    digests: dict[int, bytes] = field(default_factory=dict)
    receipts: Receipts = field(init=False)
    ahead: DigestAhead = field(init=False)
    looks_ahead: bool = False
    """A task is at work on `ahead`."""
    budget: LineBudget = field(default_factory=LineBudget)
    log: CommitLog = field(default_factory=CommitLog)
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    timer: asyncio.TimerHandle | None = None
    encoded: asyncio.Event = field(default_factory=asyncio.Event)
    """Not set while work that was offered is being encoded."""
    encodes_first: bool = False
    """The last work that was offered could not be encoded: nobody should wait for such work again."""
    repairing: bool = False
    """The anchor is about to be replaced: no round begins."""
    doubting: set[PeerId] = field(default_factory=set)
    """Members that claim a better anchor, while that is looked into."""
    view: View | None = None
    """The last one that the machine was told."""
    unfetchable: Commit | None = None
    """The commit whose results nobody has, while the repair that this asks for is under way."""
    is_outrun: bool = False
    _outrun_by: set[PeerId] = field(default_factory=set)
    round_began_at: float = 0.0
    up_bytes: int = 0
    up_values: int = 0
    down_bytes: int = 0
    down_values: int = 0

    def __post_init__(self) -> None:
        self.receipts = Receipts(self.machine.me)
        self.ahead = DigestAhead(self.state.codec, self.state.num_values)
        self.encoded.set()

    def tells_of_own_work(self, commit: Commit) -> bool:
        """Whether a commit says what became of own work."""
        return not isinstance(self.machine, CellRoundMachine) or self.machine.knows_own_part(commit)

    def known_anchors(self) -> dict[int, bytes]:
        """Per version that is remembered here, the digest of its anchor, as messages have it."""
        known = {version: commit.anchor_digest for version, commit in self.machine.history.items()}
        known |= {version: digest[:DIGEST_BYTES] for version, digest in self.digests.items()}
        return {**known, self.state.version: self.state.digest[:DIGEST_BYTES]}

    def common_version(self, before: Mapping[int, bytes], commits: Sequence[Commit]) -> int:
        """The newest version that two lineages share as far as is known: that of `before`, and the one here now.

        Args:
            before: `known_anchors` of the lineage that was left.
            commits: recent ones of the new lineage.
        """
        now = {commit.version: commit.anchor_digest for commit in commits}
        now[self.state.version] = self.state.digest[:DIGEST_BYTES]
        return max((version for version, digest in before.items() if now.get(version) == digest), default=0)

    def had(self, version: int, digest: bytes) -> bool:
        """Whether the anchor here is, or was at that version, one whose digest begins so; as far as is remembered."""
        if version == self.state.version:
            return self.state.digest.startswith(digest)
        known = self.digests.get(version)
        return known.startswith(digest) if known is not None else self.log.has_left(version, digest)

    def anchors(self) -> dict[int, bytes]:
        """Version -> digest, as messages have it, of all anchors of this lineage that are remembered."""
        return {**self.log.anchors(), **self.known_anchors()}

    def begin_search(self) -> None:
        """The results of a commit are looked for from now on."""
        self.is_outrun = False
        self._outrun_by.clear()

    def hear_version(self, sender: PeerId, theirs: VersionIs) -> None:
        """Notice that the swarm is so far ahead that nobody keeps the results of the commit being applied here.

        A stranger's word does not end the search: more than half of the live members of that round must say so.
        """
        applying = self.machine.applying
        if applying is None or theirs.version <= applying.version + HISTORY_COMMITS:
            return
        self._outrun_by.add(sender)
        members = {entry.peer_id for entry in applying.roster} - {self.machine.me}
        members = members & {*self.machine.trainers} or members
        if is_majority(len(self._outrun_by & members), len(members)):
            self.is_outrun = True
            self.result_arrived.set()
