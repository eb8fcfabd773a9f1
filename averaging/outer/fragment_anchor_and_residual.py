"""State of one fragment at one peer: anchor, momentum, residual and the contribution under way.

Pure: no I/O, no clock. Each method returns the resulting change of the live parameters as an array to add to them.
(`outer_step.py` describes the sum x = A - O - r - L that each method preserves.) Processing in chunks that fit the
cache limits the peak memory to one temporary vector per fragment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec
from averaging.outer.change_buffers import Change
from averaging.outer.contribution_weights import staleness_reach
from averaging.outer.outer_settings import OuterRule
from averaging.outer.outer_step import CHUNK_VALUES, anchor_digest, outer_step_into, overlay_of
from averaging.outer.own_contributions import CommittedShard, OwnWork, Sent
from averaging.wire.messages import Work, WorkPart, parts_within
from averaging.wire.work_by_range import Waiting, with_bases_up_to, with_more, without
from dht.records.lineages import MAX_LINEAGE_TOKENS

_OWN_WORK = tuple(field.name for field in fields(OwnWork))


@dataclass
class FragmentState:
    """State of one fragment. Arrays are float32 [num_values] and belong to the caller (usually shared memory).

    Attributes:
        unsent_tokens, unsent_steps, unsent_base_version, unsent_parts: the work that waits in the residual, as in
            `averaging.wire.messages.Work`; zero tokens mean no work.
        own_share: this peer's share of the weights in the last commit with own work, for the eager overlay of the next
            send.
        was_sent_before: whether part of the waiting work was sent before, so another lineage may have it.
        base_ceiling: newest base version that the next work may claim, because it began in a lineage that this peer
            left.
    """

    rule: OuterRule
    codec: Codec
    anchor: F32
    momentum: F32
    residual: F32
    version: int = 0
    lineage_tokens: int = 0
    digest: bytes = b""
    pending: Sent | None = None
    unsent_tokens: int = 0
    unsent_steps: int = 0
    unsent_base_version: int = 0
    unsent_parts: tuple[WorkPart, ...] = ()
    own_share: float = 1.0
    was_sent_before: bool = field(default=False, repr=False)
    base_ceiling: int | None = field(default=None, repr=False)
    shown_share: float = field(default=1.0, repr=False)
    velocity: F32 | None = field(default=None, repr=False)

    @property
    def num_values(self) -> int:
        return self.anchor.size

    @property
    def own_work(self) -> OwnWork:
        """The state that belongs only to this peer, without the residual. The arrays are shared, not copied."""
        return OwnWork(**{name: getattr(self, name) for name in _OWN_WORK})

    def give_back(self, work: OwnWork) -> None:
        """Restore `own_work` of an earlier process. The caller restores the residual."""
        for name in _OWN_WORK:
            setattr(self, name, getattr(work, name))
        self.was_sent_before = work.unsent_tokens > 0  # conservatively
        self.velocity = None if work.velocity is None else work.velocity.copy()

    def begin_at(self, version: int, lineage_tokens: int) -> None:
        """Set the version of the anchor that the arrays hold."""
        self.version, self.lineage_tokens = version, lineage_tokens

    def give_up_work(self) -> F32:
        """Drop the contribution under way and the waiting work. Return the change to add to the live parameters."""
        self.pending = None
        return self.drop_waiting()

    def receive_work(self, values: F32, tokens: int, steps: int, base_version: int) -> None:
        """Add an outer gradient of the trainer to the residual. The live parameters already show it."""
        for start, end in self._chunks():
            self.residual[start:end] += values[start:end]
        ceiling, self.base_ceiling = self.base_ceiling, None
        work = Waiting(tokens, steps, base_version if ceiling is None else min(base_version, ceiling))
        self._add_waiting(work, 0, self.num_values)

    def announce(self) -> Waiting:
        """Return the waiting work with the numbers that `send` will attach to it, before the work is encoded.

        Raises:
            ValueError: no work waits, or a contribution is under way.
        """
        if self.pending is not None or not self.unsent_tokens:
            raise ValueError("send() needs waiting work and no contribution under way")
        # After a repair the anchor can have a lower version than the base of the work.
        return with_bases_up_to(self.waiting, self.version)

    def send(self, sequence: int) -> tuple[Sent, Change | None]:
        """Do `encode_work` and `after_send`. Return (contribution, change to add to the live parameters; None: no
        change).
        """
        sent = self.encode_work(sequence)
        return sent, self.after_send(sent)

    def encode_work(self, sequence: int) -> Sent:
        """Encode all waiting work. The codec's error stays in the residual (error feedback, arXiv 1901.09847).

        `after_send` returns the resulting change of the live parameters.

        Raises:
            ValueError: no work waits, a contribution is under way, or the work is not finite.
        """
        work = self.announce()
        encoded = self.codec.encode_with_residual(self.residual)
        self.pending = Sent(sequence, encoded, work.tokens, work.steps, work.base_version, work.parts)
        self._set_waiting(Waiting())
        self.was_sent_before = False
        # The overlay must later remove exactly what it adds now, even if the share changes in between.
        self.shown_share = self.own_share
        return self.pending

    @property
    def shows_sends(self) -> bool:
        """Whether the live parameters change when work is sent."""
        rule = self.rule
        return rule.mode != "streaming" and not (rule.mode == "carry" and rule.overlay_gain == 1.0)

    def after_send(self, sent: Sent, out: Change | None = None) -> Change | None:
        """Return the change of the live parameters because this work was sent (None: no change), in `out` if given."""
        if not self.shows_sends:
            return None
        change: Change = np.empty_like(self.anchor) if out is None else out
        for start, end in self._chunks():
            self._show_less_overlay(sent, start, end, change[start:end])
        return change

    def take_back(self) -> F32 | None:
        """Return the work of the contribution under way to the waiting work, because it will not be committed. Return
        the change to show.
        """
        sent, self.pending = self.pending, None
        if sent is None or self.rule.mode == "streaming":
            return None
        change = np.zeros_like(self.anchor)
        for start, end in self._chunks():
            self._return_work(sent, start, end, change)
        self._add_waiting(sent, 0, self.num_values)
        self.was_sent_before = True
        return change

    def apply(
        self,
        shards: Sequence[CommittedShard],
        commit_tokens: int,
        out: Change | None = None,
        on_stepped: Callable[[int], None] = lambda end: None,
    ) -> tuple[Change, int]:
        """Step the anchor from `version` to `version + 1`, and update own work.

        Own work in a committed shard leaves the overlay. Sent work that is in no result (void shard, missed deadline)
        returns to the residual, so nothing is lost. In mode streaming it does not return: the blend has kept half of it
        in the live parameters, and the next outer gradient contains that half.

        Args:
            out: receives the change, float32 [num_values]. The shards must then cover all values.
            on_stepped: called with each `end` such that the anchor's values [0, end) are final.

        Returns:
            (change, num_returned): the change to add to the live parameters, float32 [num_values], and the number of
            values whose own work returned. Tokens, steps and base of that work wait with exactly these values.
        """
        change: Change = np.zeros_like(self.anchor) if out is None else out
        sent = self.pending
        returned: list[tuple[int, int]] = []
        gradient = np.empty(min(self.num_values, self._chunk_values), dtype=np.float32)
        for shard in shards:
            if sent is not None and not shard.own_included and self.rule.mode != "streaming":
                returned.append((shard.start, shard.end))
            beta = self.rule.outer_momentum if shard.outer_momentum is None else shard.outer_momentum
            for start, end in self._chunks(shard.start, shard.end):
                part = change[start:end]
                if shard.gradient is not None:
                    mean = gradient[: end - start]
                    self.codec.decode(shard.gradient.slice_blocks(start - shard.start, end - start), mean)
                    outer_step_into(self.anchor[start:end], self.momentum[start:end], mean, shard.outer_lr, beta, part)
                elif out is not None:
                    part.fill(0.0)
                on_stepped(end)
                if sent is not None and shard.own_included:
                    self._take_from_overlay(sent, start, end, part, beta)
                    continue
                if sent is not None and self.rule.mode != "streaming":
                    self._return_work(sent, start, end, change)
                if shard.gradient is not None:  # the momentum of a void shard did not change either
                    self._advance_velocity(None, start, end, beta)
        num_returned = 0
        if sent is not None:
            for start, end in returned:
                num_returned += sum(size for size, part in parts_within(sent, start, end) if part.tokens)
                self._add_waiting(sent, start, end)
            self.was_sent_before |= num_returned > 0
        self.pending = None
        self.version += 1
        self.lineage_tokens = min(self.lineage_tokens + commit_tokens, MAX_LINEAGE_TOKENS)
        return change, num_returned

    def adopt(self, anchor: F32, momentum: F32, version: int, lineage_tokens: int, digest: bytes) -> None:
        """Replace the anchor with one fetched from the swarm. Own work stays; see `settle_in_new_lineage`."""
        self.anchor[:] = anchor
        self.momentum[:] = momentum
        self.version, self.lineage_tokens, self.digest = version, lineage_tokens, digest

    def settle_in_new_lineage(
        self, left_version: int, common_version: int | None, *, is_pending_missed: bool = False
    ) -> None:
        """After `adopt`, give up work that the new lineage may contain, so that no work counts twice.

        That is the contribution under way and, after a fork, also the waiting work if any of it was sent before. Work
        that was never sent stays. The caller compares `shown()`.

        If the new anchor is later in the same lineage, no other work is given up, and a contribution that missed its
        round waits again.

        Equal version numbers of two lineages mean nothing. So the waiting work, and the work that the trainer has
        begun, get another base: the last version common to both, or one half as old as the staleness limit. Other peers
        can believe either, whenever their versions arrived.

        Args:
            left_version: version of the replaced anchor.
            common_version: newest version whose anchor is known to be the same in both lineages; None if unknown.
            is_pending_missed: whether the commit after `left_version` is known and contains no part of the
                contribution.
        """
        if common_version is not None and common_version >= left_version:
            if is_pending_missed:
                self.take_back()
            self.pending = None
            return
        self.pending = None
        if self.was_sent_before:
            self._forget_waiting()
        half_of_limit = staleness_reach(self.rule.mode, math.ceil(self.rule.staleness_limit / 2))
        self.base_ceiling = max(0, common_version or 0, self.version - half_of_limit)
        self._set_waiting(with_bases_up_to(self.waiting, self.base_ceiling))

    def refresh_digest(self) -> bytes:
        """Recompute, store and return the digest of (A, m)."""
        self.digest = anchor_digest(self.anchor, self.momentum)
        return self.digest

    def shown(self, out: F32 | None = None) -> F32:
        """Return A - O - r, in `out` if given: the live parameters of this fragment without work that the trainer has
        not handed over.
        """
        shown: F32 = np.subtract(self.anchor, self.residual, out=out)
        if self.pending is not None:
            for start, end in self._chunks():
                overlay = self._overlay(self._decoded(self.pending.encoded, start, end), start, end)
                if overlay is not None:
                    shown[start:end] -= overlay
        return shown

    @property
    def waiting(self) -> Waiting:
        """The work in the residual that has not been sent."""
        return Waiting(self.unsent_tokens, self.unsent_steps, self.unsent_base_version, self.unsent_parts)

    def drop_waiting(self) -> F32:
        """Drop the waiting work. Return the change to show."""
        change = self.residual.copy()
        self._forget_waiting()
        return change

    def drop_late(self, oldest: int) -> tuple[F32, int]:
        """Drop waiting work on bases before `oldest`, which no peer may apply any more. Other work keeps waiting.

        Returns:
            (change, tokens): the change to add to the live parameters, and the dropped tokens, in whole contributions.
        """
        kept, gone = without(self.waiting, self.num_values, lambda part: part.base_version < oldest)
        tokens = self.unsent_tokens - kept.tokens
        if not kept.tokens:
            return self.drop_waiting(), tokens
        change = np.zeros_like(self.residual)
        for start, end in gone:
            change[start:end] = self.residual[start:end]
            self.residual[start:end] = 0.0
        self._set_waiting(kept)
        return change, tokens

    # ------------------------------------------------------------------------------------------------- details

    def _forget_waiting(self) -> None:
        self.residual.fill(0.0)
        self._set_waiting(Waiting())
        self.was_sent_before = False

    def _add_waiting(self, work: Work, start: int, end: int) -> None:
        """Add work on values [start, end) to the waiting work."""
        self._set_waiting(with_more(self.waiting, self.num_values, work, start, end))

    def _set_waiting(self, work: Waiting) -> None:
        self.unsent_tokens, self.unsent_steps = work.tokens, work.steps
        self.unsent_base_version, self.unsent_parts = work.base_version, work.parts

    def _chunks(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
        stop, step = self.num_values if end is None else end, self._chunk_values
        for position in range(start, stop, step):
            yield position, min(position + step, stop)

    @property
    def _chunk_values(self) -> int:
        # Encoded data can only be divided between blocks.
        return max(1, CHUNK_VALUES // self.codec.block_size) * self.codec.block_size

    def _decoded(self, encoded: EncodedBlocks, start: int, end: int) -> F32:
        work = np.empty(end - start, dtype=np.float32)
        self.codec.decode(encoded.slice_blocks(start, end - start), work)
        return work

    def _overlay(self, work: F32, start: int, end: int) -> F32 | None:
        return overlay_of(self.rule, work, self._velocity_slice(start, end), self.shown_share)

    def _show_less_overlay(self, sent: Sent, start: int, end: int, part: F32) -> None:
        """Write the sent work, less the part of it that the live parameters keep showing, into `part`."""
        piece = sent.encoded.slice_blocks(start, end - start)
        self.codec.decode(piece, part)
        if self.rule.mode == "carry":
            self.codec.decode_accumulate(piece, -self.rule.overlay_gain, part)
            return
        overlay = self._overlay(part, start, end)
        if overlay is not None:
            part -= overlay

    def _take_from_overlay(self, sent: Sent, start: int, end: int, part: F32, beta: float) -> None:
        """Remove own work in a committed shard from the overlay: add its overlay to `part` of the change."""
        if self.rule.mode == "carry":
            piece = sent.encoded.slice_blocks(start, end - start)
            self.codec.decode_accumulate(piece, self.rule.overlay_gain, part)
            return
        work = self._decoded(sent.encoded, start, end)
        overlay = self._overlay(work, start, end)
        if overlay is not None:
            part += overlay
        self._advance_velocity(work, start, end, beta)

    def _return_work(self, sent: Sent, start: int, end: int, change: Change) -> None:
        work = self._decoded(sent.encoded, start, end)
        self.residual[start:end] += work
        part = change[start:end]
        part -= work
        overlay = self._overlay(work, start, end)
        if overlay is not None:
            part += overlay

    def _velocity_slice(self, start: int, end: int) -> F32 | None:
        if self.rule.mode != "eager":
            return None
        if self.velocity is None:
            self.velocity = np.zeros_like(self.anchor)
        return self.velocity[start:end]

    def _advance_velocity(self, work: F32 | None, start: int, end: int, beta: float) -> None:
        velocity = self._velocity_slice(start, end)
        if velocity is not None:
            velocity *= np.float32(beta)
            if work is not None:
                velocity += work
