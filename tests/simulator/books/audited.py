"""The product's own state, machine and store of a fragment, with books kept beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from averaging.arrays import F32
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import ShardStore
from averaging.outer.change_buffers import Change
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.own_contributions import OwnWork, Sent
from averaging.rounds.machine_events import Event
from averaging.rounds.round_machine import RoundMachine
from averaging.wire.messages import Commit, parts_within
from averaging.wire.work_by_range import without
from tests.simulator.books.ledger import NO_WORK, Blame, Ledger, Node, SentWork


class AuditedState(FragmentState):
    """A fragment state that tells a ledger what happens to it, and is checked after each change."""

    ledger: Ledger
    blame: Blame
    committing: Callable[[], Commit | None]
    clock: Callable[[], float]
    on_node: Callable[[Node], None]
    may_be_misled: Callable[[], bool]
    """Whether an anchor that nobody's commit led to is no fault of this peer now."""
    left: tuple[bytes, int]
    is_torn: bool = False
    """A network process died while it wrote this anchor: its values are of no lineage."""

    def refresh_digest(self) -> bytes:
        digest = super().refresh_digest()
        if self.version == 0 and not self.is_torn:
            self.ledger.lineages.begin(digest)
        elif self.is_torn and digest not in self.ledger.lineages.nodes:
            self.is_torn = False
            self.ledger.lineages.plant(self.version, self.lineage_tokens, digest, self.clock())
            self.ledger.begin_torn(self.residual.astype(np.float64))
        return digest

    def begin_at(self, version: int, lineage_tokens: int) -> None:
        super().begin_at(version, lineage_tokens)
        self.is_torn = version > 0 and lineage_tokens == 0

    def give_back(self, work: OwnWork) -> None:
        """A network process goes on where an earlier one ended."""
        super().give_back(work)
        self.ledger.go_on(None if work.pending is None else work.pending.sequence)
        self.audit("the network process was started again")

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
        np.minimum(self.ledger.bases, base_version, out=self.ledger.bases)
        self.audit("work arrived")

    def encode_work(self, sequence: int) -> Sent:
        sent = super().encode_work(sequence)
        decoded = np.empty(self.num_values, dtype=np.float32)
        self.codec.decode(sent.encoded, decoded)
        bases, self.ledger.bases = self.ledger.bases, np.full(self.num_values, NO_WORK)
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
        change = super().after_send(sent, out)
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
        bases = self.ledger.bases
        bases[bases != NO_WORK] = np.minimum(bases, self.version)[bases != NO_WORK]
        self.audit("an anchor was adopted")

    def drop_waiting(self) -> F32:
        change = super().drop_waiting()
        self.audit("work expired")
        return change

    def _forget_waiting(self) -> None:
        super()._forget_waiting()
        self.ledger.give_up_waiting()
        self.ledger.bases[:] = NO_WORK

    def drop_late(self, oldest: int) -> tuple[F32, int]:
        _, gone = without(self.waiting, self.num_values, lambda part: part.base_version < oldest)
        change, tokens = super().drop_late(oldest)
        for start, end in gone:
            self.ledger.give_up_waiting(start, end)
            self.ledger.bases[start:end] = NO_WORK
        self.audit("a part of the work expired")
        return change, tokens

    def _wait_again(self, sent: Sent, start: int, end: int) -> None:
        sent_bases = self.ledger.sent[sent.sequence].bases
        bases = self.ledger.bases
        bases[start:end] = np.minimum(bases[start:end], sent_bases[start:end])


class AuditedMachine(RoundMachine):
    """Calls `watch` after every event it took."""

    watch: Callable[[], None]

    def step(self, event: Event, now: float) -> list[Any]:
        effects = super().step(event, now)
        self.watch()
        return effects


class AuditedStore(ShardStore):
    """What is reduced must be what was sent, byte for byte."""

    check: Callable[..., None]

    def contributions(self, rule, plan, leader, shard_index, members):  # type: ignore[no-untyped-def]
        found = super().contributions(rule, plan, leader, shard_index, members)
        for member, _, blocks in found:
            self.check(plan.roster[member], plan.shards[shard_index], blocks)
        return found


def audit(fragment: FragmentRuntime) -> tuple[AuditedState, AuditedMachine, AuditedStore]:
    """Turn the parts of a fragment that was just built into audited ones, in place."""
    fragment.state.__class__, fragment.machine.__class__ = AuditedState, AuditedMachine
    fragment.store.__class__ = AuditedStore
    return fragment.state, fragment.machine, fragment.store  # type: ignore[return-value]
