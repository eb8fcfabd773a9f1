"""Messages of two-level rounds for hypothesis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import strategies as st

from averaging.wire.cell_messages import (
    CellOffer,
    Partial,
    SliceOrder,
    SlicePlan,
    SliceReport,
    SliceRow,
    as_part,
    with_upper,
)
from averaging.wire.messages import (
    DIGEST_BYTES,
    MAX_TOKENS,
    PART_DIGEST_BYTES,
    SIGNATURE_BYTES,
    CellRow,
    SliceResult,
    TopCommit,
)
from tests.kit.network.memory_networks import named

versions = st.integers(0, 2**53)
attempts = st.integers(0, 10_000)
digests = st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)
part_digests = st.integers(0, 255).map(lambda byte: bytes([byte]) * PART_DIGEST_BYTES)
signatures = st.integers(0, 255).map(lambda byte: bytes([byte]) * SIGNATURE_BYTES)
peer_ids = st.integers(0, 10**6).map(named)
counts = st.integers(0, 2**60)
reals = st.floats(0, 1e30)
seconds = st.floats(0, 86_400)


@st.composite
def cell_rows(draw, leaders=None):
    leaders = leaders or sorted(draw(st.sets(peer_ids, min_size=1, max_size=4)))
    rows = []
    for number, leader in enumerate(leaders):
        num_members = draw(st.integers(1, 128))
        # Four rows of so many are what one commit may hold.
        tokens = st.integers(0, min(num_members, 64) * MAX_TOKENS)
        sums = (draw(tokens), draw(reals), draw(tokens), draw(reals), draw(counts))
        rows.append(CellRow(f"2/{number}", leader, draw(part_digests), num_members, *sums))
    return tuple(rows)


@st.composite
def edges(draw, start, end):
    inner = draw(st.sets(st.integers(start + 1, end - 1), max_size=3)) if end - start > 1 else set()
    return list(itertools.pairwise([start, *sorted(inner), end]))


@st.composite
def uppers(draw, sizes, part=None):
    """Of any round, or of the round of a cell's part."""
    fragment = part.fragment if part else draw(st.integers(0, len(sizes) - 1))
    others = sorted(draw(st.sets(peer_ids, max_size=3)) - {part.leader}) if part else None
    cells = draw(cell_rows([part.leader, *others] if part else None))
    numbers = st.integers(0, len(cells) - 1)
    cuts = [(shard.start, shard.end) for shard in part.shards] if part else draw(edges(0, sizes[fragment]))
    slices = []
    for start, end in cuts:
        included = tuple(sorted(draw(st.sets(numbers))))
        slices.append(
            SliceResult(
                start,
                end,
                draw(numbers),
                draw(peer_ids),
                draw(digests) if included else b"",
                included,
                draw(signatures) if included else b"",
            )
        )
    version, anchor = (part.version, part.anchor_digest) if part else (draw(versions), draw(digests))
    previous = draw(st.just(b"") | digests)
    signature = draw(signatures)
    return TopCommit(
        fragment, version, draw(attempts), draw(peer_ids), anchor, cells, tuple(slices), previous, signature
    )


@st.composite
def cell_commits(draw, commits, sizes):
    part = draw(commits)
    return with_upper(part, draw(uppers(sizes, part)))


@st.composite
def cell_offers(draw, commits):
    part = draw(commits)
    (row, *_) = draw(cell_rows())
    return CellOffer(part.fragment, part.version, draw(attempts), part.anchor_digest, row, part)


@st.composite
def cross_plans(draw, sizes):
    upper = draw(uppers(sizes))
    slices = tuple(SliceRow(one.start, one.end, one.cell, one.owner) for one in upper.slices)
    return SlicePlan(
        upper.fragment,
        upper.version,
        upper.attempt,
        upper.leader,
        upper.anchor_digest,
        upper.cells,
        slices,
        draw(seconds),
        draw(seconds),
        draw(signatures),
    )


@st.composite
def crosses(draw, sizes):
    plan = draw(cross_plans(sizes))
    numbers = tuple(range(len(plan.slices)))
    cells = draw(st.sampled_from([(), plan.cells]))
    return SliceOrder(
        plan.fragment,
        plan.version,
        plan.attempt,
        draw(peer_ids),
        plan.anchor_digest,
        draw(attempts),
        draw(st.integers(0, len(plan.cells) - 1)),
        cells,
        numbers,
        plan.slices,
        0,
        sizes[plan.fragment],
        draw(signatures),
        draw(seconds),
    )


@st.composite
def partials(draw, sizes):
    fragment = draw(st.integers(0, len(sizes) - 1))
    start = draw(st.integers(0, sizes[fragment] - 1))
    end = draw(st.integers(start + 1, sizes[fragment]))
    return Partial(
        *(fragment, draw(versions), draw(attempts), draw(peer_ids), draw(st.integers(0, 255)), start, end),
        *(draw(st.integers(0, 255)), draw(reals), draw(st.integers(0, start)), end, draw(signatures)),
    )


def cell_strategies(commits: st.SearchStrategy, sizes: Sequence[int]) -> list[st.SearchStrategy]:
    """One strategy for each kind of message; `commits` are plain ones on fragments of `sizes`."""
    members = st.sets(st.integers(0, 255), max_size=9).map(lambda found: tuple(sorted(found)))
    fragments = st.integers(0, len(sizes) - 1)
    return [
        commits.map(as_part),
        cell_commits(commits, sizes),
        cell_offers(commits),
        cross_plans(sizes),
        crosses(sizes),
        partials(sizes),
        uppers(sizes),
        st.builds(SliceReport, fragments, versions, attempts, st.integers(0, 255), digests, members, signatures),
    ]
