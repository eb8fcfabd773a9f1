"""Books that a chaos run keeps beside the code: every lineage of anchors, and where each peer's work went.

What is in an anchor is known from the commits that led to it, not from what a peer believes. Two books per peer and
fragment follow its work, after every change of its state:

- The residual, in numbers: trained values come in, what is sent goes out, what is in no anchor comes back, as
  docs/contributor/mathematics.md says. Values are whole multiples of `UNIT`, so with the fp32 codec this is exact.
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

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.outer.change_buffers import Change
from averaging.outer.contribution_weights import staleness_of
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import Sent
from averaging.wire.messages import Commit, RosterEntry, parts_within
from averaging.wire.work_by_range import oldest_base, without
from dht.ground.host import PeerId

Bases = npt.NDArray[np.int64]
NO_WORK = 2**60
Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int8]
Blame = Callable[[str, str], None]
"""(the invariant that is broken, what happened)."""

UNIT = 2.0**-10
"""Trained values are multiples of it, so that sums of them are exact in float32."""


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
    is_exact: bool
    keeps_accounts: bool
    residual: Values
    waiting: Counts
    may_be_lost: Mask
    largest: float = 1.0
    sent: dict[int, SentWork] = field(default_factory=dict)
    under_way: int | None = None
    is_restarted: bool = False
    """Since the last send the process was restarted, which knows no more whether what waits was sent before."""

    @classmethod
    def empty(cls, me: PeerId, lineages: Lineages, rule: OuterRule, is_exact: bool) -> Ledger:
        size = lineages.num_values
        none, never = np.zeros((0, size), dtype=np.int8), np.zeros((0, size), dtype=np.bool_)
        return cls(me, lineages, is_exact, rule.mode != "streaming", np.zeros(size), none, never)

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
        tolerance = 0.0 if self.is_exact else 1e-6 * (1 + len(self.sent)) * self.largest
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


class AuditedState(FragmentState):
    """A fragment state that tells a ledger what happens to it, and is checked after each change."""

    ledger: Ledger
    blame: Blame
    committing: Callable[[], Commit | None]
    clock: Callable[[], float]
    on_node: Callable[[Node], None]
    may_be_misled: Callable[[], bool]
    """Whether an anchor that nobody's commit led to is no fault of this peer now."""
    bases: Bases
    """The same of the waiting work."""
    left: tuple[bytes, int]

    def audit(self, after: str) -> None:
        if self.digest not in self.ledger.lineages.nodes:
            self.blame("fork", f"has an anchor of version {self.version} that no commit led to, after {after}")
            return
        verdict = self.ledger.verdict(self)
        if verdict is not None:
            self.blame(verdict[0], f"{verdict[1]}, after {after} at version {self.version}")

    def receive_work(self, values: F32, tokens: int, steps: int, base_version: int) -> None:
        super().receive_work(values, tokens, steps, base_version)
        self.ledger.train(values.astype(np.float64))
        np.minimum(self.bases, base_version, out=self.bases)
        self.audit("work arrived")

    def encode_work(self, sequence: int) -> Sent:
        sent = super().encode_work(sequence)
        decoded = np.empty(self.num_values, dtype=np.float32)
        self.codec.decode(sent.encoded, decoded)
        bases, self.bases = self.bases, np.full(self.num_values, NO_WORK)
        values = decoded.astype(np.float64)
        self.ledger.send(sequence, SentWork(values, sent.encoded, bases, self.ledger.waiting, self.digest))
        start = 0
        for num_values, part in parts_within(sent, 0, self.num_values):
            oldest = int(bases[start : start + num_values].min())
            if part.tokens and part.base_version > oldest:
                self.blame("age", f"sent work on version {oldest} as work on version {part.base_version}")
            start += num_values
        self.audit("a send")
        return sent

    def after_send(self, sent: Sent, out: Change | None = None) -> Change | None:
        before = self.residual.astype(np.float64)
        change = super().after_send(sent, out)
        if self.rule.residual_decay != 1.0:
            self.ledger.residual -= before - self.residual
        self.audit("a send was shown")
        return change

    def apply(self, shards, commit_tokens, out=None, on_stepped=lambda end: None):  # type: ignore[no-untyped-def]
        parent, sent, version = self.digest, self.pending, self.version
        outcome = super().apply(shards, commit_tokens, out, on_stepped)
        commit = self.committing()
        if commit is None or commit.version != version:
            self.blame("fork", f"applied something to version {version} while no commit of it was being applied")
            return outcome
        self.refresh_digest()
        self.on_node(self.ledger.lineages.grow(parent, commit, self.digest, self.clock()))
        self.ledger.commit(self.digest)
        if sent is not None and self.rule.mode != "streaming":
            for shard in shards:
                if not shard.own_included:
                    self._wait_again(sent, shard.start, shard.end)
        self.audit("a commit")
        return outcome

    def take_back(self) -> F32 | None:
        sent = self.pending
        change = super().take_back()
        if sent is not None and self.ledger.keeps_accounts:
            self._wait_again(sent, 0, self.num_values)
        self.ledger.take_back()
        self.audit("work was taken back")
        return change

    def adopt(self, anchor, momentum, version, lineage_tokens, digest):  # type: ignore[no-untyped-def]
        self.left = (self.digest, self.version)
        super().adopt(anchor, momentum, version, lineage_tokens, digest)

    def settle_in_new_lineage(
        self, left_version: int, common_version: int | None, *, is_pending_missed: bool = False
    ) -> None:
        if self.left[1] != left_version:
            self.blame("mass", f"left version {self.left[1]} and settles as if it were {left_version}")
        had, may_go = bool(self.ledger.waiting.any()), self.ledger.may_be_elsewhere()
        self.ledger.leave(self.left[0])
        super().settle_in_new_lineage(left_version, common_version, is_pending_missed=is_pending_missed)
        if had and not self.ledger.waiting.any() and not may_go:
            self.blame("mass", "gave up work that was never sent, after a fork")
        self.moved()

    def moved(self) -> None:
        """Another anchor was taken over."""
        self.ledger.give_up_under_way()
        lineages = self.ledger.lineages
        if self.digest not in lineages.nodes and self.may_be_misled():
            lineages.plant(self.version, self.lineage_tokens, self.digest, self.clock())
        if lineages.is_planted(self.digest):
            self.ledger.may_be_lost[:] = True  # nobody knows whose work is in it
        self.bases[self.bases != NO_WORK] = np.minimum(self.bases, self.version)[self.bases != NO_WORK]
        self.audit("an anchor was adopted")

    def drop_waiting(self) -> F32:
        change = super().drop_waiting()
        self.audit("work expired")
        return change

    def _forget_waiting(self) -> None:
        super()._forget_waiting()
        self.ledger.give_up_waiting()
        self.bases[:] = NO_WORK

    def drop_late(self, oldest: int) -> tuple[F32, int]:
        _, gone = without(self.waiting, self.num_values, lambda part: part.base_version < oldest)
        change, tokens = super().drop_late(oldest)
        for start, end in gone:
            self.ledger.give_up_waiting(start, end)
            self.bases[start:end] = NO_WORK
        self.audit("a part of the work expired")
        return change, tokens

    def _wait_again(self, sent: Sent, start: int, end: int) -> None:
        bases = self.ledger.sent[sent.sequence].bases
        self.bases[start:end] = np.minimum(self.bases[start:end], bases[start:end])
