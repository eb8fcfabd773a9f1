"""Books kept beside the code: every lineage of anchors, and where each peer's work went.

What is in an anchor is known from the commits that led to it, not from what a peer believes. Two books per peer and
fragment follow its work, after every change of its state:

- The residual, in numbers: trained values come in, what is sent goes out, what is in no anchor comes back, as
  docs/contributor/mathematics.md says.
- The pieces of work, as counts: each handed-over piece is, value by value, in the anchor, under way or waiting: once,
  never twice, and never nowhere, unless it was reported as expired or had to be given up. Given up may be: what a
  killed process had under way; what was under way when another anchor was taken over; what only the left anchor had;
  and after a fork what waits, if some of it had been sent before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from averaging.codec.blocks import EncodedBlocks
from averaging.outer.contribution_weights import staleness_of
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.wire.messages import Commit, RosterEntry
from averaging.wire.work_by_range import oldest_base
from dht.ground.host import PeerId

Bases = npt.NDArray[np.int64]
NO_WORK = 2**60
Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int8]
Blame = Callable[[str, str], None]
"""(the invariant that is broken, what happened)."""


@dataclass(frozen=True)
class Node:
    """An anchor: what led to it, and which values of which contributions are in it."""

    version: int
    tokens: int
    digest: bytes
    parent: Node | None
    commit: Commit | None
    made_at: float
    included: Mapping[tuple[PeerId, int], Mask]

    def is_in(self, other: Node) -> bool:
        """Whether `other` descends from this anchor, or is it."""
        node: Node | None = other
        while node is not None and node.version > self.version:
            node = node.parent
        return node is self


class Lineages:
    """All anchors of one fragment that any peer ever had, as a tree."""

    def __init__(self, index: int, num_values: int, rule: OuterRule, blame: Blame) -> None:
        self.index = index
        self.num_values = num_values
        self.nodes: dict[bytes, Node] = {}
        self.sent: dict[tuple[PeerId, int], SentWork] = {}
        self._rule = rule
        self._blame = blame
        self._children: dict[tuple[bytes, Commit], bytes] = {}
        self._planted: set[bytes] = set()

    def begin(self, digest: bytes) -> None:
        """A peer begins with the initial parameters."""
        if digest not in self.nodes and any(node.version == 0 for node in self.nodes.values()):
            self._blame("fork", "two peers begin with different initial parameters")
        self.nodes.setdefault(digest, Node(0, 0, digest, None, None, 0.0, {}))

    def plant(self, version: int, tokens: int, digest: bytes, now: float) -> None:
        """Somebody has an anchor that a liar made up."""
        self.nodes[digest] = Node(version, tokens, digest, None, None, now, {})
        self._planted.add(digest)

    def is_planted(self, digest: bytes) -> bool:
        """Whether an anchor is one that a liar made up, or came of one."""
        node = self.nodes.get(digest)
        while node is not None and node.parent is not None:
            node = node.parent
        return node is not None and node.digest in self._planted

    def commits_between(self, left: bytes, digest: bytes) -> list[Commit]:
        """The commits that lead to an anchor and not to the anchor `left`, as far as any peer applied them."""
        old, node, commits = self.nodes.get(left), self.nodes.get(digest), []
        while node is not None and node.commit is not None and not (old is not None and node.is_in(old)):
            commits.append(node.commit)
            node = node.parent
        return commits

    def grow(self, parent: bytes, commit: Commit, digest: bytes, now: float) -> Node:
        """A peer went from `parent` to `digest` by `commit`."""
        known = self._children.setdefault((parent, commit), digest)
        if known != digest:
            self._blame("fork", f"one commit of version {commit.version} led to two anchors: {_short(commit, digest)}")
        node = self.nodes.get(digest)
        if node is not None:
            return node
        before = self.nodes[parent]
        if (commit.version, commit.anchor_digest) != (before.version, parent[: len(commit.anchor_digest)]):
            self._blame("fork", f"a commit of version {commit.version} was applied to version {before.version}")
        included = dict(before.included)
        for shard in commit.shards:
            for member in shard.included if shard.digest else ():
                entry = commit.roster[member]
                self._check_age(commit, entry, shard.start, shard.end)
                key = (entry.peer_id, entry.sequence)
                mask = included.get(key, np.zeros(self.num_values, dtype=np.bool_)).copy()
                if mask[shard.start : shard.end].any():
                    self._blame("twice", f"version {commit.version} has work again that is in its anchor: {key}")
                mask[shard.start : shard.end] = True
                included[key] = mask
        node = Node(commit.version + 1, before.tokens + commit.tokens, digest, before, commit, now, included)
        self.nodes[digest] = node
        return node

    def _check_age(self, commit: Commit, entry: RosterEntry, start: int, end: int) -> None:
        peer_id, work = entry.peer_id, self.sent.get((entry.peer_id, entry.sequence))
        oldest = oldest_base(entry, start, end)
        if work is not None:
            oldest = min(oldest, int(work.bases[start:end].min()))
        staleness = staleness_of(self._rule.mode, commit.version, oldest)
        if staleness > self._rule.staleness_limit:
            self._blame("age", f"version {commit.version} has work of {peer_id[-6:]} that is {staleness} versions late")


def _short(commit: Commit, digest: bytes) -> str:
    return f"led by {commit.leader[-6:]}, {len(commit.roster)} members, {digest.hex()[:8]}"


@dataclass
class SentWork:
    """A contribution as its sender made it; `pieces` says, per piece of work and value, whether it is in there."""

    values: Values
    encoded: EncodedBlocks
    bases: Bases
    """Per value the version on which its oldest work was done; `NO_WORK` where none is."""
    pieces: Counts
    anchor_digest: bytes
    """What its sender had then."""


@dataclass
class Ledger:
    """The work of one peer on one fragment, over all network processes that share one memory."""

    me: PeerId
    lineages: Lineages
    keeps_accounts: bool
    residual: Values
    bases: Bases
    """Per value the version on which the oldest waiting work was done; `NO_WORK` where none waits."""
    waiting: Counts
    may_be_lost: Mask
    largest: float = 1.0
    sent: dict[int, SentWork] = field(default_factory=dict)
    under_way: int | None = None
    is_restarted: bool = False
    """Since the last send the process was restarted, which knows no more whether what waits was sent before."""

    @classmethod
    def empty(cls, me: PeerId, lineages: Lineages, rule: OuterRule) -> Ledger:
        size = lineages.num_values
        none, never = np.zeros((0, size), dtype=np.int8), np.zeros((0, size), dtype=np.bool_)
        return cls(me, lineages, rule.mode != "streaming", np.zeros(size), np.full(size, NO_WORK), none, never)

    # --------------------------------------------------------------------------------------------- what happened

    def train(self, values: Values) -> None:
        self.residual += values
        self.largest = max(self.largest, float(np.abs(self.residual).max()))
        size = self.lineages.num_values
        self.waiting = np.vstack([self.waiting, np.ones((1, size), dtype=np.int8)])
        self.may_be_lost = np.vstack([self.may_be_lost, np.zeros((1, size), dtype=np.bool_)])
        for work in self.sent.values():
            work.pieces = np.vstack([work.pieces, np.zeros((1, size), dtype=np.int8)])

    def send(self, sequence: int, work: SentWork) -> None:
        self.residual -= work.values
        self.waiting = np.zeros_like(self.waiting)
        self.sent[sequence] = self.lineages.sent[(self.me, sequence)] = work
        self.under_way, self.is_restarted = sequence, False

    def give_up_waiting(self, start: int = 0, end: int | None = None) -> None:
        self.residual[start:end] = 0.0
        self.may_be_lost[:, start:end] |= self.waiting[:, start:end] > 0
        self.waiting[:, start:end] = 0

    def commit(self, digest: bytes) -> None:
        """The anchor went on to `digest`; what was under way and is not in that commit waits again."""
        sequence, self.under_way = self.under_way, None
        if sequence is None:
            return
        self._move(sequence, ~self._included(digest, sequence), +1)

    def take_back(self) -> None:
        sequence, self.under_way = self.under_way, None
        if sequence is not None:
            self._move(sequence, np.ones(self.lineages.num_values, dtype=np.bool_), +1)

    def forget_process(self) -> None:
        """The network process died: what was under way is in a commit, or gone."""
        if self.under_way is not None:
            self.may_be_lost |= self.sent[self.under_way].pieces > 0
        self.under_way, self.is_restarted = None, True

    def go_on(self, under_way: int | None) -> None:
        """Another network process goes on, with this contribution under way."""
        if under_way is None or under_way != self.under_way:
            self.forget_process()
        self.is_restarted = True

    def begin_torn(self, residual: Values) -> None:
        """A process died while it wrote the anchor: whatever was there may be lost."""
        self.residual, self.under_way, self.is_restarted = residual, None, True
        self.may_be_lost[:] = True
        self.waiting[:] = 0
        self.bases[:] = NO_WORK

    def give_up_under_way(self) -> None:
        if self.under_way is not None:
            self.may_be_lost |= self.sent[self.under_way].pieces > 0
            self.under_way = None

    def leave(self, left: bytes) -> None:
        """The anchor `left` was replaced: what it alone had is given up."""
        for (peer_id, sequence), mask in self.lineages.nodes[left].included.items():
            if peer_id == self.me and sequence in self.sent:
                self.may_be_lost |= (self.sent[sequence].pieces > 0) & mask

    def may_be_elsewhere(self) -> bool:
        """Whether some of what waits was sent before, or nobody knows it because the process was restarted."""
        return self.is_restarted or any(
            bool(((work.pieces > 0) & (self.waiting > 0)).any()) for work in self.sent.values()
        )

    def _move(self, sequence: int, mask: Mask, sign: int) -> None:
        if self.keeps_accounts:
            work = self.sent[sequence]
            self.residual += sign * np.where(mask, work.values, 0.0)
            self.waiting = self.waiting + (sign * work.pieces * mask).astype(np.int8)

    def _explained(self, surplus: Values, digest: bytes, tolerance: float) -> tuple[str, str]:
        for sequence, work in self.sent.items():
            included = np.where(self._included(digest, sequence), work.values, 0.0)
            if np.abs(surplus - included).max() <= tolerance:
                return "twice", f"contribution {sequence} is in the anchor and waits as well"
        return "mass", f"the residual is off by {np.abs(surplus).max():.3g}"

    def _included(self, digest: bytes, sequence: int) -> Mask:
        found = self.lineages.nodes[digest].included.get((self.me, sequence))
        return np.zeros(self.lineages.num_values, dtype=np.bool_) if found is None else found

    # ------------------------------------------------------------------------------------------------ the verdict

    def verdict(self, state: FragmentState) -> tuple[str, str] | None:
        """(the invariant that is broken, how), when the books and the state do not agree."""
        surplus = state.residual - self.residual
        tolerance = 1e-6 * (1 + len(self.sent)) * self.largest
        if not np.abs(surplus).max() <= tolerance:
            return self._explained(surplus, state.digest, tolerance)
        counts = self.waiting.copy()
        if self.under_way is not None:
            counts += self.sent[self.under_way].pieces
        for (peer_id, sequence), mask in self.lineages.nodes[state.digest].included.items():
            if peer_id == self.me and sequence in self.sent:
                counts += self.sent[sequence].pieces * mask
        if counts.max(initial=0) > 1:
            piece = int(np.argmax(counts.max(axis=1)))
            return "twice", f"piece {piece} of its work is there {counts.max()} times, in the anchor or waiting"
        if self.waiting.min(initial=0) < 0:
            return "mass", f"piece {int(np.argmin(self.waiting.min(axis=1)))} of its work waits less than not at all"
        lost = (counts < 1) & ~self.may_be_lost
        if self.keeps_accounts and lost.any():
            return "mass", f"piece {int(np.argmax(lost.any(axis=1)))} of its work is nowhere any more"
        return None
