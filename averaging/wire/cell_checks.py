"""Frames of two-level rounds: what spans the fields of a message, for `frames.py`. Pure."""

from __future__ import annotations

from averaging.wire.cell_messages import (
    MAX_GRID_SHARDS,
    CellOffer,
    CellPart,
    CellsCommit,
    Partial,
    SliceOrder,
    SlicePlan,
)
from averaging.wire.field_checks import Limits, WholeCheck
from averaging.wire.messages import MAX_CELL_ROSTER, MAX_COMMIT_TOKENS, MAX_TOKENS, Commit, TopCommit
from dht.errors import PeerFault
from dht.host import PeerId


def _check_part(part: Commit, sender: PeerId, _limits: Limits) -> None:
    if len(part.roster) > MAX_CELL_ROSTER or len(part.shards) > MAX_GRID_SHARDS:
        raise PeerFault(
            sender,
            f"sent a cell of {len(part.roster)} members and {len(part.shards)} shards; expected at most "
            f"{MAX_CELL_ROSTER} and {MAX_GRID_SHARDS}",
        )


def _check_commit(commit: CellsCommit, sender: PeerId, limits: Limits) -> None:
    upper = commit.upper
    mine = (commit.fragment, commit.version, commit.anchor_digest)
    if (upper.fragment, upper.version, upper.anchor_digest) != mine:
        raise PeerFault(sender, "sent a cell's part with the commit of another round; expected both of one")
    _check_top(upper, sender, limits)
    if commit.cell < 0:
        raise PeerFault(sender, f"sent a part by {commit.leader}, which leads no cell of that round")
    cuts = [(shard.start, shard.end) for shard in commit.shards]
    if any(not any(start <= one.start and one.end <= end for start, end in cuts) for one in upper.slices):
        raise PeerFault(sender, "sent a commit whose slices do not lie in the shards of its cell")
    _check_part(commit, sender, limits)


def _check_offer(offer: CellOffer, sender: PeerId, limits: Limits) -> None:
    part, mine = offer.part, (offer.fragment, offer.version, offer.anchor_digest)
    if (part.fragment, part.version, part.anchor_digest) != mine:
        raise PeerFault(sender, "offered the part of another round; expected one of this round")
    _check_part(part, sender, limits)


def _check_slices(message: TopCommit | SlicePlan, sender: PeerId, limits: Limits) -> None:
    size, cells = limits.fragment_sizes[message.fragment], message.cells
    num_tokens = sum(row.tokens for row in cells)
    if not cells:
        raise PeerFault(sender, f"sent a {message.KIND} without cells; expected at least one")
    for what, values in (("name", [row.name for row in cells]), ("leader", [row.leader for row in cells])):
        if len(set(values)) != len(cells):
            raise PeerFault(sender, f"sent a {message.KIND} in which two cells have one {what}")
    if any(row.tokens > row.num_members * MAX_TOKENS for row in cells) or num_tokens > MAX_COMMIT_TOKENS:
        raise PeerFault(
            sender,
            f"sent a {message.KIND} of {num_tokens} tokens; expected at most {MAX_TOKENS} of a member and "
            f"{MAX_COMMIT_TOKENS} together",
        )
    position = 0
    for one in message.slices:
        if one.start != position or one.end <= one.start or one.cell >= len(cells):
            raise PeerFault(
                sender,
                f"slice [{one.start}, {one.end}) of cell {one.cell} in a {message.KIND}; expected slices that follow "
                f"each other from 0 and cells below {len(cells)}",
            )
        position = one.end
    if position != size:
        raise PeerFault(sender, f"slices cover {position} of {size} values of fragment {message.fragment}")


def _check_top(message: TopCommit, sender: PeerId, limits: Limits) -> None:
    _check_slices(message, sender, limits)
    num_cells = len(message.cells)
    for result in message.slices:
        if result.included and result.included[-1] >= num_cells:
            raise PeerFault(sender, f"listed cell {result.included[-1]} in a slice; expected below {num_cells}")
        if not bool(result.digest) == bool(result.included) == bool(result.signature):
            raise PeerFault(sender, "sent a slice with only some of digest, cells and signature")
        if result.digest and not result.owner:
            raise PeerFault(sender, "sent a slice with a mean and no owner")


def _check_order(message: SliceOrder, sender: PeerId, limits: Limits) -> None:
    size = limits.fragment_sizes[message.fragment]
    if len(message.numbers) != len(message.slices) or not message.run_start < message.run_end <= size:
        raise PeerFault(sender, "sent slices without their numbers, or shards outside of the fragment")
    if any(not message.run_start <= one.start < one.end <= message.run_end for one in message.slices):
        raise PeerFault(sender, "sent slices that are not the receiver's; expected those of its shards")
    if message.cells and any(max(one.cell, message.cell) >= len(message.cells) for one in message.slices):
        raise PeerFault(sender, f"named a cell beyond the {len(message.cells)} that it listed")


def _check_partial(message: Partial, sender: PeerId, _limits: Limits) -> None:
    if not message.run_start <= message.start < message.end <= message.run_end:
        raise PeerFault(
            sender,
            f"sent a cell's mean of values [{message.start}, {message.end}) as the reducer of "
            f"[{message.run_start}, {message.run_end}); expected values of its own",
        )


CELL_ROUND_CHECKS: dict[type, WholeCheck] = {
    CellPart: _check_part,
    CellOffer: _check_offer,
    SlicePlan: _check_slices,
    SliceOrder: _check_order,
    Partial: _check_partial,
    TopCommit: _check_top,
    CellsCommit: _check_commit,
}
"""What spans the fields of a message of a two-level round."""
