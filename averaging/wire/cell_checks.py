"""Frames of two-level rounds: the checks that `frames.py` applies to them. Pure."""

from __future__ import annotations

from typing import Any

from averaging.wire.cell_messages import (
    MAX_CELLS,
    MAX_GRID_SHARDS,
    MAX_SLICES,
    PART_DIGEST_BYTES,
    CellOffer,
    CellPart,
    CellRow,
    CellsCommit,
    Cross,
    Crossed,
    CrossPlan,
    Partial,
    SliceResult,
    SliceRow,
    Upper,
)
from averaging.wire.checks import (
    ATTEMPT,
    VALUE,
    VERSION,
    Check,
    Limits,
    digest,
    digest_or_void,
    fail,
    fragment,
    integer,
    members,
    number,
    peer_id,
    rows,
    signature,
    signature_or_void,
)
from averaging.wire.messages import MAX_COMMIT_TOKENS, MAX_TOKENS, Commit
from dht.errors import PeerFault
from dht.host import PeerId

MAX_CELL_NAME = 60
"""Characters: `site ` and a site, or `DEPTH/NUMBER`."""
MAX_CELL_ROSTER = 128
"""Members of one cell: so that its part and the commit of all cells fit one header."""
CELL_KINDS = (CellPart, CellOffer, CrossPlan, Cross, Partial, Crossed, Upper, CellsCommit)
_CELL = integer(0, MAX_CELLS - 1)
_SLICE = integer(0, MAX_SLICES - 1)
_TOKENS = integer(0, MAX_CELL_ROSTER * MAX_TOKENS)
_COUNT = integer(0, 2**60)
_WEIGHT = number(1e30)


def _name(value: Any, _limits: Limits) -> str:
    if type(value) is not str or not 0 < len(value) <= MAX_CELL_NAME or not value.isprintable():
        raise fail(value, f"the name of a cell, at most {MAX_CELL_NAME} printable characters")
    return value


def _peer_or_nobody(value: Any, limits: Limits) -> PeerId:
    return PeerId("") if type(value) is str and not value else PeerId(peer_id(value, limits))


def _part_digest(value: Any, _limits: Limits) -> bytes:
    if type(value) is not bytes or len(value) != PART_DIGEST_BYTES:
        raise fail(value, f"a digest of {PART_DIGEST_BYTES} bytes")
    return value


def _cell_row(row: Any, limits: Limits) -> CellRow:
    if type(row) is not list or len(row) != 9:
        raise fail(row, "the nine fields of a cell")
    return CellRow(
        _name(row[0], limits),
        peer_id(row[1], limits),
        _part_digest(row[2], limits),
        integer(1, MAX_CELL_ROSTER)(row[3], limits),
        _TOKENS(row[4], limits),
        _WEIGHT(row[5], limits),
        _TOKENS(row[6], limits),
        _WEIGHT(row[7], limits),
        _COUNT(row[8], limits),
    )


def _slice_row(row: Any, limits: Limits) -> SliceRow:
    if type(row) is not list or len(row) != 4:
        raise fail(row, "[start, end, cell, owner]")
    return SliceRow(
        VALUE(row[0], limits), VALUE(row[1], limits), _CELL(row[2], limits), _peer_or_nobody(row[3], limits)
    )


def _slice_result(row: Any, limits: Limits) -> SliceResult:
    if type(row) is not list or len(row) != 7:
        raise fail(row, "[start, end, cell, owner, digest, included, signature]")
    return SliceResult(
        VALUE(row[0], limits),
        VALUE(row[1], limits),
        _CELL(row[2], limits),
        _peer_or_nobody(row[3], limits),
        digest_or_void(row[4], limits),
        members(row[5], limits),
        signature_or_void(row[6], limits),
    )


def _upper(value: Any, limits: Limits) -> Upper:
    if type(value) is not list or len(value) != 9:
        raise fail(value, "the nine fields of the commit of all cells")
    return Upper(
        fragment(value[0], limits),
        VERSION(value[1], limits),
        ATTEMPT(value[2], limits),
        peer_id(value[3], limits),
        digest(value[4], limits),
        _CELL_ROWS(value[5], limits),
        _SLICE_RESULTS(value[6], limits),
        digest_or_void(value[7], limits),
        signature(value[8], limits),
    )


_CELL_ROWS = rows(_cell_row, MAX_CELLS)
_SLICE_ROWS = rows(_slice_row, MAX_SLICES)
_SLICE_RESULTS = rows(_slice_result, MAX_SLICES)

CELL_CHECKS: dict[str, Check] = {
    "row": _cell_row,
    "cells": _CELL_ROWS,
    "numbers": rows(_SLICE, MAX_SLICES),
    "cell": _CELL,
    "cell_attempt": ATTEMPT,
    "slice": _SLICE,
    "weight": _WEIGHT,
    "run_start": VALUE,
    "run_end": VALUE,
    "credential": signature,
    "partial_deadline_seconds": number(86_400),
    "upper": _upper,
}
SLICE_CHECKS: dict[type, Check] = {CrossPlan: _SLICE_ROWS, Cross: _SLICE_ROWS, Upper: _SLICE_RESULTS}


def check_cells(message: object, sender: PeerId, limits: Limits) -> None:
    """What spans the fields of a message of a two-level round.

    Raises:
        PeerFault: the first thing that does not fit, as got and expected.
    """
    if isinstance(message, CellsCommit):
        _check_commit(message, sender, limits)
    elif isinstance(message, Upper | CrossPlan):
        _check_upper(message, sender, limits)
    elif isinstance(message, CellOffer):
        part = message.part
        if (part.fragment, part.version, part.anchor_digest) != (
            message.fragment,
            message.version,
            message.anchor_digest,
        ):
            raise PeerFault(sender, "offered the part of another round; expected one of this round")
        _check_part(part, sender)
    elif isinstance(message, Cross):
        _check_cross(message, sender, limits)
    elif isinstance(message, Partial) and not message.run_start <= message.start < message.end <= message.run_end:
        raise PeerFault(
            sender,
            f"sent a cell's mean of values [{message.start}, {message.end}) as the reducer of "
            f"[{message.run_start}, {message.run_end}); expected values of its own",
        )
    if isinstance(message, Commit) and isinstance(message, CellPart | CellsCommit):
        _check_part(message, sender)


def _check_part(part: Commit, sender: PeerId) -> None:
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
    _check_upper(upper, sender, limits)
    if commit.cell < 0:
        raise PeerFault(sender, f"sent a part by {commit.leader}, which leads no cell of that round")
    cuts = [(shard.start, shard.end) for shard in commit.shards]
    if any(not any(start <= one.start and one.end <= end for start, end in cuts) for one in upper.slices):
        raise PeerFault(sender, "sent a commit whose slices do not lie in the shards of its cell")


def _check_upper(message: Upper | CrossPlan, sender: PeerId, limits: Limits) -> None:
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
            f"{MAX_COMMIT_TOKENS} in all",
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
    if isinstance(message, Upper):
        for result in message.slices:
            if any(index >= len(cells) for index in result.included):
                raise PeerFault(sender, f"listed cell {result.included[-1]} in a slice; expected below {len(cells)}")
            if not bool(result.digest) == bool(result.included) == bool(result.signature):
                raise PeerFault(sender, "sent a slice with only some of digest, cells and signature")
            if result.digest and not result.owner:
                raise PeerFault(sender, "sent a slice with a mean and no owner")


def _check_cross(message: Cross, sender: PeerId, limits: Limits) -> None:
    size = limits.fragment_sizes[message.fragment]
    if len(message.numbers) != len(message.slices) or not message.run_start < message.run_end <= size:
        raise PeerFault(sender, "sent slices without their numbers, or shards outside of the fragment")
    if any(not message.run_start <= one.start < one.end <= message.run_end for one in message.slices):
        raise PeerFault(sender, "sent slices that are not the receiver's; expected those of its shards")
    if message.cells and any(max(one.cell, message.cell) >= len(message.cells) for one in message.slices):
        raise PeerFault(sender, f"named a cell beyond the {len(message.cells)} that it listed")
