"""The bytes of two-level rounds at one peer: its cell's means, those of other cells, and what it averages across cells.

The means of cells travel with more bits than contributions (`cell_codec_of`), so that the second quantisation is lost
in the noise of the first. The mean of all cells is encoded with the run's codec, once, by the owner of the slice, and
everybody applies those bytes. What that encoding lost is carried as in a flat round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from averaging.cells.formation import cell_codec_of
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec
from averaging.exchange.exchange_ports import Context
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import ENTRY_BYTES, payload_digest
from averaging.outer.contribution_weights import raw_weight
from averaging.outer.robust_mean import Combined, ShardContribution, bounded_weights, combine, pairwise_sum
from averaging.outer.shard_mean import Reduction, add_error, keep_error
from averaging.rounds import machine_events
from averaging.signing.round_signatures import LedMessage
from averaging.wire.cell_messages import CellOffer, Partial, SliceOrder, SlicePlan
from averaging.wire.messages import CellLevel, Result, TopCommit
from dht.errors import PeerFault
from dht.host import PeerId

Key = tuple[int, int, PeerId, int]
"""(version, attempt, leader, shard or slice)."""
_SIGNED_IN: dict[type, Callable[[Any], Sequence[LedMessage]]] = {
    CellOffer: lambda offer: offer.part.signed,
    SlicePlan: lambda plan: (plan,),
    TopCommit: lambda commit: (commit,),
}
"""What leaders must have signed in a message."""


@dataclass
class _Held:
    """What one fragment holds for the current version and the next."""

    own: dict[Key, tuple[EncodedBlocks, float]] = field(default_factory=dict)
    partials: dict[tuple[PeerId, Partial], bytes] = field(default_factory=dict)
    held_bytes: dict[PeerId, int] = field(default_factory=dict)


class CellExchange:
    """The part of an `Exchange` that is about cells; see the module docstring.

    Args:
        on_mean: told that a mean of this peer over cells is in the fragment's store.
    """

    def __init__(self, context: Context, on_mean: Callable[[FragmentRuntime], None]) -> None:
        self._context = context
        self._on_mean = on_mean
        self._fragments: dict[int, _Held] = {}

    def take(self, fragment: FragmentRuntime, sender: PeerId, message: CellLevel, payload: memoryview) -> bool:
        """Keep a cell's mean, check what must be signed; returns whether the message is dealt with.

        Raises:
            PeerFault: wrong size, too many bytes, or a leader's statement that the leader has not signed.
        """
        notary = fragment.machine.notary
        signed = _SIGNED_IN[type(message)](message) if type(message) in _SIGNED_IN else ()
        if sender != self._context.me and not all(map(notary.is_signed, signed)):
            raise PeerFault(sender, f"sent a {message.KIND} that its leader has not signed; expected a signed one")
        if not isinstance(message, Partial):
            return False
        if fragment.machine.version <= message.version <= fragment.machine.version + 1:
            self._keep(fragment, sender, message, payload)
            if message.version == fragment.machine.version:
                self._context.step(fragment, machine_events.PartialArrived(sender, message))
        return True

    def reduce_slice(self, fragment: FragmentRuntime, effect: machine_events.ReduceSlice) -> None:
        """Make the mean of a slice, beside all else."""
        self._context.spawn(self._reduce_slice(fragment, effect))

    def send_partials(self, fragment: FragmentRuntime, effect: machine_events.SendPartials) -> None:
        """Send this peer's cell's means of slices to their owners."""
        order = effect.order
        for position, (number, row) in enumerate(zip(order.numbers, order.slices, strict=True)):
            if row.owner == self._context.me:
                continue
            blocks, weight = self._own_slice(fragment, order, effect.leader, position)
            if blocks is None:
                continue
            values, run = (row.start, row.end), (order.run_start, order.run_end)
            header = Partial(*order.place, order.leader, number, *values, order.cell, weight, *run, order.credential)
            fragment.traffic.sent(self._context.links.send(row.owner, header, blocks.pack()))

    async def reduce(
        self, fragment: FragmentRuntime, effect: machine_events.ReduceShard, contributions: Sequence[ShardContribution]
    ) -> None:
        """The cell's mean of one shard, kept here until the cells average."""
        plan, shard = effect.plan, effect.plan.shards[effect.shard]
        size = shard.end - shard.start

        def run() -> tuple[Combined, EncodedBlocks | None, float, bytes]:
            combined = combine(contributions, self._context.rule, fragment.state.codec, size)
            if not combined.included:
                return combined, None, 0.0, b""
            weight = math.fsum(
                raw_weight(terms, self._context.rule)
                for member, terms, _ in contributions
                if member in combined.included
            )
            try:
                encoded = cell_codec_of(fragment.state.codec).encode_with_residual(combined.values)
            except ValueError:
                return combined, None, 0.0, b""
            return combined, encoded, weight, payload_digest(b"".join(bytes(part) for part in encoded.pack()))

        combined, encoded, weight, digest = await self._context.ports.compute(run)
        self._context.guard.refused(plan, combined.refused)
        if encoded is None or fragment.machine.version != plan.version:
            return
        self._held(fragment).own[plan.version, plan.attempt, effect.leader, effect.shard] = (encoded, weight)
        self._context.step(
            fragment, machine_events.ShardReduced(plan.attempt, effect.leader, effect.shard, digest, combined.included)
        )

    def relay(self, fragment: FragmentRuntime, sender: PeerId, message: Result, payload: memoryview) -> None:
        """Pass the mean of a slice on to this peer's cell, when its owner sent it."""
        if message.version == fragment.machine.version:
            for peer_id in fragment.machine.scope.relays(sender, message.shard):
                self._context.links.send(peer_id, message, [payload])

    def advanced(self, fragment: FragmentRuntime) -> None:
        """The fragment is at another version: forget the old ones, tell the machine of what came early."""
        held, version = self._held(fragment), fragment.state.version
        held.own.clear()
        held.partials = {key: payload for key, payload in held.partials.items() if key[1].version >= version}
        held.held_bytes.clear()
        for sender, message in list(held.partials):
            if message.version == version:
                self._context.step(fragment, machine_events.PartialArrived(sender, message))

    # ------------------------------------------------------------------------------------------------------ details

    def _held(self, fragment: FragmentRuntime) -> _Held:
        return self._fragments.setdefault(fragment.index, _Held())

    def _keep(self, fragment: FragmentRuntime, sender: PeerId, message: Partial, payload: memoryview) -> None:
        expected = cell_codec_of(fragment.state.codec).encoded_num_bytes(message.end - message.start)
        if len(payload) != expected:
            raise PeerFault(sender, f"sent {len(payload)} bytes in a {message.KIND}; expected {expected}")
        held = self._held(fragment)
        # Two versions of one fragment; nobody honest reduces more than all of it.
        most = 2 * cell_codec_of(fragment.state.codec).encoded_num_bytes(fragment.store.num_values) + 65_536
        num_bytes = held.held_bytes.get(sender, 0) + max(expected, ENTRY_BYTES)
        if num_bytes > most:
            raise PeerFault(sender, f"sent {num_bytes} bytes of its cell's means; expected at most {most}")
        held.held_bytes[sender] = num_bytes
        held.partials[sender, message] = bytes(payload)

    def _own_slice(
        self, fragment: FragmentRuntime, order: SliceOrder, leader: PeerId, position: int
    ) -> tuple[Any, float]:
        """(blocks, weight) of this peer's cell's mean of a slice; (None, 0) when it is not here."""
        row = order.slices[position]
        plan = fragment.machine.plan_under(order.cell_attempt, leader)
        for index, shard in enumerate(plan.shards if plan is not None else ()):
            if shard.start <= row.start < shard.end:
                key = (order.version, order.cell_attempt, leader, index)
                encoded, weight = self._held(fragment).own.get(key, (None, 0.0))
                if encoded is not None:
                    return encoded.slice_blocks(row.start - shard.start, row.end - row.start), weight
        return None, 0.0

    async def _reduce_slice(self, fragment: FragmentRuntime, effect: machine_events.ReduceSlice) -> None:
        order, position = effect.order, effect.position
        number, row = order.numbers[position], order.slices[position]
        own, own_weight = self._own_slice(fragment, order, effect.leader, position)
        held = self._held(fragment).partials
        arrived = [(message, held[sender, message]) for sender, message in effect.partials if (sender, message) in held]
        carried = fragment.store.carried_error(row.start, row.end)

        def run() -> Reduction | None:
            parts: dict[int, tuple[EncodedBlocks, float]] = {}
            if own is not None:
                parts[order.cell] = (own, own_weight)
            for message, payload in arrived:
                blocks = cell_codec_of(fragment.state.codec).unpack(row.end - row.start, memoryview(payload))
                parts[message.cell] = (blocks, message.weight)
            return self._mean_of(parts, fragment.state.codec, row.end - row.start, carried)

        reduction = await self._context.ports.compute(run)
        if reduction is None or fragment.machine.version != order.version:
            return
        digest = fragment.store.add_reduction(order.version, number, row.start, row.end, reduction)
        self._on_mean(fragment)
        self._context.step(fragment, machine_events.SliceReduced(order, position, digest, reduction.included))

    def _mean_of(
        self,
        parts: dict[int, tuple[EncodedBlocks, float]],
        codec: Codec,
        num_values: int,
        carried: EncodedBlocks | None,
    ) -> Reduction | None:
        cells = sorted(parts)
        while cells:
            total = math.fsum(parts[cell][1] for cell in cells)
            shares = [float(np.float32(parts[cell][1] / total)) for cell in cells]
            shares = bounded_weights(shares, self._context.rule.clip_weight_ratio)
            try:
                mean = pairwise_sum(
                    cell_codec_of(codec),
                    [(parts[cell][0], share) for cell, share in zip(cells, shares, strict=True)],
                    num_values,
                )
                add_error(carried, mean)
                encoded = codec.encode_with_residual(mean)
            except ValueError as error:
                bad = getattr(error, "position", None)
                if bad is None:
                    return None
                del cells[bad]
                continue
            return Reduction(encoded, tuple(cells), keep_error(mean, codec.block_size), ())
        return None
