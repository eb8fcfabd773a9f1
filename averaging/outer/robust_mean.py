"""Combine the contributions to one shard into one outer gradient, even if some senders lie. Pure.

`combine` refuses contributions that no training produces, limits norms, and combines the rest as the manifest says:

- `mean`: the weighted mean.
- `centered_clip`: from the coordinate-wise median, 20 steps towards the contributions, with the length of each pull
  limited to a radius (arXiv 2106.11257, Algorithm 1; the start and the relative radius follow its code).

Norms, radii and weights are bounded relative to the median member (the lower of two, so that a half of liars cannot
raise the bound). No bound needs tuning to a model. Members are compared within classes of equal staleness, because
honest late work is longer than fresh work.

All operations are in roster (PeerId) order, in float32 with sums of squares in float64, or with exact sums. They
process one chunk of all members at a time, without parallel sums, so the result does not depend on arrival order or
threads. Besides the encoded inputs, the means need log2(num_members) + 2 vectors of the shard. The other combinations
need one or two, and at most 32 MiB of work space (`CHUNK_VALUES` values of all members together, and copies of a part
of them).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from averaging.arrays import F32, F64
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec
from averaging.outer.contribution_weights import Terms, raw_weight, weights_of
from averaging.outer.outer_settings import OuterRule

ShardContribution = tuple[int, Terms, EncodedBlocks]
"""(roster index, terms of its weight, encoded values)."""

CHUNK_VALUES = 1 << 22
"""Decoded values of all members together that are held at once (16 MiB of float32): a call for each member's part of a
chunk costs 40 microseconds."""
CACHED_VALUES = 1 << 14
"""Values of each member that are compared at once: with more the members' rows miss the cache, fewer cost more calls. A
multiple of `EXACT_VALUES`."""
EXACT_VALUES = 1 << 10
"""Values summed at once without rounding; see `inner_products`."""
SUM_CHUNK_VALUES = 1 << 18
"""Chunk of a plain mean: a MiB, which the allocator keeps for the next chunk
(`peer/network/process/child_start.py`)."""
FEWEST_TO_COMPARE = 3
"""With two members it is impossible to tell which is the outlier."""
REFUSED_BEYOND_LIMIT = 4.0
"""Contributions up to this multiple of the norm limit are shortened; longer ones are refused. With the default limit
that is 8 times the median norm: training noise stays far below, the attack -10 D does not."""
LARGEST_VALUE = 2.0**64
"""Values in training stay far below: the square of this value overflows float32, and with it each gradient norm and
second moment. A flipped top bit of the exponent, which is 128 doublings, lifts all values from 2^-64 on beyond it."""
SMALLEST_NORM = 2.0**-100
"""Contributions with a smaller norm count as zero, without direction."""
CENTERED_CLIP_STEPS = 20


@dataclass(frozen=True, slots=True)
class RefusedMember:
    """A contribution that was refused through its sender's fault."""

    member: int
    offence: Literal["undecodable", "beyond_norm"]
    what: str


@dataclass(frozen=True, slots=True)
class Combined:
    """The combined values, float32 [num_values], the roster members included, and the refused members."""

    values: F32
    included: tuple[int, ...]
    refused: tuple[RefusedMember, ...]


@dataclass(frozen=True, slots=True)
class _Member:
    index: int
    terms: Terms
    encoded: EncodedBlocks
    largest: float
    """Bound on the magnitude of its values."""
    norm: float = 0.0


def combine(contributions: Sequence[ShardContribution], rule: OuterRule, codec: Codec, num_values: int) -> Combined:
    """Combine one shard as `rule` says, without contributions that are refused or beyond the staleness limit.

    With fewer than three members, all combinations are the weighted mean.

    Args:
        contributions: in roster order; each of `num_values` values.
    """
    members, refused = _usable(contributions, rule, codec, num_values)
    as_sent = _Group(members, [1.0] * len(members), [], codec, num_values)
    is_clipped = rule.combine == "centered_clip" and len(members) >= FEWEST_TO_COMPARE
    spread = _spread(as_sent) if is_clipped else None
    if rule.clip_norm_ratio is not None:
        members = _with_norms(members, codec, spread)
    limits = _norm_limits(members, rule)
    while beyond := _beyond(members, limits):
        refused += [
            RefusedMember(members[at].index, "beyond_norm", f"norm {members[at].norm:.3g}, limit {limits[at]:.3g}")
            for at in beyond
        ]
        members = [member for at, member in enumerate(members) if at not in beyond]
        limits = _norm_limits(members, rule)
    values = np.zeros(num_values, dtype=np.float32)
    included = tuple(member.index for member in members)
    if members:
        bounds = zip(members, limits, strict=True)
        scales = [min(member.norm, limit) / member.norm if member.norm else 1.0 for member, limit in bounds]
        weights = bounded_weights(weights_of([member.terms for member in members], rule), rule.clip_weight_ratio)
        group = _Group(members, scales, weights, codec, num_values)
        if rule.combine == "mean" or len(members) < FEWEST_TO_COMPARE:
            values = _mean(group)
        else:
            is_as_sent = len(members) == len(as_sent.members) and set(scales) == {1.0}
            spread = spread if spread is not None and is_as_sent else _spread(group)
            values = _centered_clip(group, spread)
    return Combined(values, included, tuple(sorted(refused, key=lambda one: one.member)))


def limits_in_classes(sizes: Sequence[float], terms: Sequence[Terms], ratio: float) -> list[float]:
    """Return the largest size (norm or distance) that each member may have: `ratio` times the median of its class.

    The class is the members of equal staleness if they are three or more, otherwise the whole group. Late work that
    took k times the steps may be as much larger, up to 1 + staleness times. No class may exceed the whole group's limit
    by more than that either, so that three liars of one staleness cannot set their own limit. The (1+s)^-a in the
    weight compensates the larger limit. Sizes of zero do not count. Limits are infinite if fewer than three members can
    be compared.
    """
    compared = [index for index, size in enumerate(sizes) if size > 0]
    if len(compared) < FEWEST_TO_COMPARE:
        return [math.inf] * len(sizes)

    def limit_among(members: Sequence[int]) -> float:
        return ratio * statistics.median_low(sizes[index] for index in members)

    limits = []
    for own, steps_ratio in zip(terms, _steps_ratios(terms), strict=True):
        alike = [index for index in compared if terms[index].staleness == own.staleness]
        late = 1.0 + own.staleness
        if len(alike) >= FEWEST_TO_COMPARE:
            limits.append(min(limit_among(alike), late * limit_among(compared)))
        else:
            limits.append(limit_among(compared) * min(late, steps_ratio))
    return limits


def _steps_ratios(terms: Sequence[Terms]) -> list[float]:
    """Return each member's inner steps over the median, at least 1."""
    typical = statistics.median_low(one.steps for one in terms) if terms else 1
    return [max(1.0, one.steps / typical) for one in terms]


def bounded_weights(weights: Sequence[float], ratio: float | None) -> list[float]:
    """Return weights (sum 1), each at most `ratio` times the median, rounded to float32.

    Tokens and steps are claims, and the largest claim must not decide a robust combination.
    """
    if ratio is None or len(weights) < FEWEST_TO_COMPARE:
        return list(weights)
    most = ratio * statistics.median_low(weights)
    bounded = [min(weight, most) for weight in weights]
    total = math.fsum(bounded)
    return [float(np.float32(weight / total)) for weight in bounded] if total > 0 else list(weights)


# ------------------------------------------------------------------------------------------------- members and chunks


@dataclass(frozen=True, slots=True)
class _Group:
    """Members in roster order. Reading a member's values multiplies them by its scale."""

    members: Sequence[_Member]
    scales: Sequence[float]
    weights: Sequence[float]
    codec: Codec
    num_values: int

    def chunks(self) -> Iterator[tuple[slice, F32]]:
        """Yield (slice, values of all members: float32 [num_members, chunk]). The next iteration overwrites the
        array.
        """
        for where, rows in _decoded_chunks([member.encoded for member in self.members], self.codec):
            for row, scale in zip(rows, self.scales, strict=True):
                if scale != 1.0:
                    row *= np.float32(scale)
            yield where, rows


def _decoded_chunks(encoded: Sequence[EncodedBlocks], codec: Codec) -> Iterator[tuple[slice, F32]]:
    num_values = encoded[0].num_values
    blocks = max(1, CHUNK_VALUES // len(encoded) // codec.block_size)
    step = blocks * codec.block_size
    space = np.empty((len(encoded), min(step, num_values)), dtype=np.float32)
    for start in range(0, num_values, step):
        size = min(step, num_values - start)
        part = space if size == space.shape[1] else np.empty((len(encoded), size), dtype=np.float32)
        for row, blocks_of_row in zip(part, encoded, strict=True):
            codec.decode(blocks_of_row.slice_blocks(start, size), row)
        yield slice(start, start + size), part


def _usable(
    contributions: Sequence[ShardContribution], rule: OuterRule, codec: Codec, num_values: int
) -> tuple[list[_Member], list[RefusedMember]]:
    """Return the members with a weight, without norms, and the contributions that training cannot have produced,
    judged by their scales without decoding.
    """
    usable, refused = [], []
    for index, terms, encoded in contributions:
        if not raw_weight(terms, rule) > 0:
            continue
        try:
            codec.check_fits(encoded, num_values)
            largest = codec.largest(encoded)
        except ValueError as error:
            refused.append(RefusedMember(index, "undecodable", str(error)))
            continue
        if largest > LARGEST_VALUE:
            what = f"values up to {largest:.3g}, larger than training can produce"
            refused.append(RefusedMember(index, "beyond_norm", what))
            continue
        usable.append(_Member(index, terms, encoded, largest))
    weights = weights_of([member.terms for member in usable], rule)
    return [member for member, weight in zip(usable, weights, strict=True) if weight > 0], refused


def _with_norms(members: Sequence[_Member], codec: Codec, spread: _Spread | None) -> list[_Member]:
    """Return the members with their norms, taken from `spread` if given."""
    if spread is not None:
        norms = spread.norms()
    else:
        norms = [
            math.sqrt(math.fsum(_sum_of_squares(rows[0]) for _, rows in _decoded_chunks([member.encoded], codec)))
            for member in members
        ]
    return [
        replace(member, norm=norm if norm >= SMALLEST_NORM and member.largest > 0 else 0.0)
        for member, norm in zip(members, norms, strict=True)
    ]


def _norm_limits(members: Sequence[_Member], rule: OuterRule) -> list[float]:
    if rule.clip_norm_ratio is None:
        return [math.inf] * len(members)
    return limits_in_classes(
        [member.norm for member in members], [member.terms for member in members], rule.clip_norm_ratio
    )


def _beyond(members: Sequence[_Member], limits: Sequence[float]) -> list[int]:
    """Return the positions of members that exceed even the limit for fast machines, which take more steps between two
    sends.
    """
    ratios = _steps_ratios([member.terms for member in members])
    return [
        at
        for at, (member, limit, steps_ratio) in enumerate(zip(members, limits, ratios, strict=True))
        if member.norm > REFUSED_BEYOND_LIMIT * limit * steps_ratio
    ]


def _sum_of_squares(values: F32) -> float:
    # Pairwise in a fixed order on one thread; BLAS sums depend on the number of threads.
    return float(np.add.reduce(np.square(values, dtype=np.float64)))


# ------------------------------------------------------------------------------------------------ ways of combining


def pairwise_sum(codec: Codec, parts: Sequence[tuple[EncodedBlocks, float]], num_values: int) -> F32:
    """Return the sum of weight * decoded, adding neighbours first, then pairs of pairs: float32 [num_values].

    The order depends only on the number of parts, and errors grow with its logarithm. 2^k equal parts of weight 2^-k
    give exactly one of them. Besides the result, log2(number of parts) + 2 chunks exist at a time.

    Raises:
        ValueError: a part is not decodable.
    """
    values = np.empty(num_values, dtype=np.float32)
    for start, chunk in _sum_chunks(values, codec):
        chunk[:] = _chunk_sum(codec, parts, num_values, start, chunk.size)
    return values


def _sum_chunks(values: F32, codec: Codec) -> Iterator[tuple[int, F32]]:
    """Yield (start, values[start : ...]) in chunks of whole blocks that stay in the cache while all members are
    added.
    """
    step = max(1, SUM_CHUNK_VALUES // codec.block_size) * codec.block_size
    for start in range(0, values.size, step):
        yield start, values[start : start + step]


def _chunk_sum(
    codec: Codec, parts: Sequence[tuple[EncodedBlocks, float]], num_values: int, start: int, size: int
) -> F32:
    sums: list[tuple[int, F32]] = []
    for encoded, weight in parts:
        total, num_pairings = np.zeros(size, dtype=np.float32), 0
        codec.check_fits(encoded, num_values)
        codec.decode_accumulate(encoded.slice_blocks(start, size), weight, total)
        while sums and sums[-1][0] == num_pairings:
            total += sums.pop()[1]
            num_pairings += 1
        sums.append((num_pairings, total))
    total = sums.pop()[1] if sums else np.zeros(size, dtype=np.float32)
    while sums:
        total += sums.pop()[1]
    return total


def _mean(group: _Group) -> F32:
    factors = [weight * scale for weight, scale in zip(group.weights, group.scales, strict=True)]
    parts = [(member.encoded, factor) for member, factor in zip(group.members, factors, strict=True)]
    return pairwise_sum(group.codec, parts, group.num_values)


@dataclass(frozen=True, slots=True)
class _Spread:
    """Offsets of the members from their coordinate-wise median.

    Attributes:
        median: float32 [num_values].
        products: inner products of the offsets and, as the last row and column, of the median: [num_members + 1] * 2.
    """

    median: F32
    products: F64

    def norms(self) -> list[float]:
        """Return the members' norms, from offsets and median."""
        squares = np.diag(self.products) + 2 * self.products[-1] + self.products[-1, -1]
        return [math.sqrt(max(0.0, square)) for square in squares[:-1].tolist()]


def _spread(group: _Group) -> _Spread:
    """Compute the spread in one pass over the decoded values."""
    num_rows = len(group.members) + 1
    median: F32 = np.empty(group.num_values, dtype=np.float32)
    products = np.zeros((num_rows, num_rows))
    space: F32 = np.empty((2, num_rows, 0), dtype=np.float32)
    for where, rows in _cached(group.chunks()):
        size = where.stop - where.start
        if space.shape[2] < size:
            space = np.empty((2, num_rows, size), dtype=np.float32)
        offsets, work = space[:, :, :size]
        median[where] = offsets[-1] = coordinate_median(rows, work)
        np.subtract(rows, offsets[-1], out=offsets[:-1])
        whole = size // EXACT_VALUES * EXACT_VALUES
        for values in (slice(0, whole), slice(whole, size)):
            if values.start < values.stop:
                products += inner_products(offsets[:, values], work[:, values])
    return _Spread(median, products)


def _cached(chunks: Iterator[tuple[slice, F32]]) -> Iterator[tuple[slice, F32]]:
    """Yield the chunks in pieces that fit the caches, divided at multiples of `EXACT_VALUES` of a chunk."""
    for where, rows in chunks:
        for start in range(0, rows.shape[1], CACHED_VALUES):
            part = rows[:, start : start + CACHED_VALUES]
            yield slice(where.start + start, where.start + start + part.shape[1]), part


def coordinate_median(rows: F32, work: F32) -> F32:
    """Return the coordinate-wise median of float32 [num_rows, n], at least two rows; for an even number of rows the
    mean of the two middle values.

    Uses a network of comparisons of whole rows, so it need not sort the values of each coordinate.

    Args:
        work: float32 [num_rows + 1, n], overwritten; the median is one of its rows.
    """
    lines, spare, is_in_work = list(rows), list(work), [False] * len(rows)
    for low, high, needs_low, needs_high in _median_network(len(rows)):
        smaller = np.minimum(lines[low], lines[high], out=spare.pop()) if needs_low else None
        if needs_high:
            lines[high] = np.maximum(lines[low], lines[high], out=lines[high] if is_in_work[high] else spare.pop())
            is_in_work[high] = True
        if smaller is not None:
            spare += [lines[low]] if is_in_work[low] else []
            lines[low], is_in_work[low] = smaller, True
    middle: F32 = lines[len(rows) // 2]
    if len(rows) % 2 == 0:
        middle += lines[len(rows) // 2 - 1]
        middle *= np.float32(0.5)
    middle += np.float32(0.0)  # either of -0 and 0 may count as the smaller
    return middle


@cache
def _median_network(num_rows: int) -> tuple[tuple[int, int, bool, bool], ...]:
    """Return comparisons (low, high, whether the smaller value is needed, whether the larger is) that move the median
    to the middle.

    Merge exchange (Knuth, The Art of Computer Programming 3, algorithm 5.2.2M), without comparisons that do not affect
    the middle rows.
    """
    comparisons = []
    highest = 1 << max(0, (num_rows - 1).bit_length() - 1)
    stride = highest
    while stride:
        distance, rest, remaining = stride, 0, highest
        while True:
            comparisons += [(at, at + distance) for at in range(num_rows - distance) if at & stride == rest]
            if remaining == stride:
                break
            distance, remaining, rest = remaining - stride, remaining // 2, stride
        stride //= 2
    needed = {num_rows // 2, (num_rows - 1) // 2}
    kept = []
    for low, high in reversed(comparisons):
        if low in needed or high in needed:
            kept.append((low, high, low in needed, high in needed))
            needed |= {low, high}
    return tuple(reversed(kept))


def inner_products(rows: F32, work: F32) -> F64:
    """Return all inner products of float32 [num_rows, n]; n is a multiple of `EXACT_VALUES`, or less.

    In each `EXACT_VALUES` of a row, values are rounded to 2^-7 (finer if fewer) of the largest value's power of two.
    All products and sums are then whole numbers below 2^24 times a power of two, which float32 represents exactly, so a
    matrix product may add in any order, on any machine, with any number of threads. Rounding changes a square by at
    most EXACT_VALUES / 2^16 of it.

    Args:
        work: of the same shape, overwritten.
    """
    num_rows, length = len(rows), min(rows.shape[1], EXACT_VALUES)
    bits = (24 - (length - 1).bit_length()) // 2
    blocks = rows.reshape(num_rows, -1, length)
    largest = np.maximum(blocks.max(axis=2), -blocks.min(axis=2))
    units = np.ldexp(np.float32(1.0), np.frexp(largest)[1] - bits)
    units[largest == 0] = 1.0
    whole = np.multiply(blocks, (1 / units)[:, :, None], out=work.reshape(blocks.shape))
    np.rint(whole, out=whole)
    of_blocks = whole.transpose(1, 0, 2)
    sums = np.matmul(of_blocks, of_blocks.transpose(0, 2, 1)).astype(np.float64)
    of_rows = units.T.astype(np.float64)
    products: F64 = (sums * of_rows[:, :, None] * of_rows[:, None, :]).sum(axis=0)
    return products


def _centered_clip(group: _Group, spread: _Spread) -> F32:
    """Do 20 steps v <- v + sum_i w_i (x_i - v) min(1, radius_i / |x_i - v|) from the median m. Radii: median distances.

    Each v is m + sum_i c_i y_i with y_i = x_i - m, and the inner products of the y give all distances. So one more pass
    over the values is enough: the result is m (1 - sum_i c_i) + sum_i c_i x_i.
    """
    products = spread.products[:-1, :-1]
    distances = np.sqrt(np.diag(products))
    radii = np.array(limits_in_classes(distances.tolist(), [member.terms for member in group.members], 1.0))
    shares = _centered_clip_shares(products, radii, np.array(group.weights, dtype=np.float64))
    combined = spread.median * np.float32(1.0 - math.fsum(shares))
    parts = [
        (member.encoded, scale * share)
        for member, scale, share in zip(group.members, group.scales, shares.tolist(), strict=True)
    ]
    for start, chunk in _sum_chunks(combined, group.codec):
        for encoded, weight in parts:
            group.codec.decode_accumulate(encoded.slice_blocks(start, chunk.size), weight, chunk)
    return combined


def _centered_clip_shares(products: F64, radii: F64, weights: F64) -> F64:
    """Return the c of v = m + sum_i c_i y_i after all steps, from the inner products of the y."""
    weights = weights / weights.sum()
    shares = np.zeros_like(weights)
    for _ in range(CENTERED_CLIP_STEPS):
        along = np.einsum("ij,j->i", products, shares)
        squares = np.diag(products) - 2 * along + float(np.einsum("i,i->", shares, along))
        distances = np.sqrt(np.maximum(squares, 0.0))
        pulls = weights * np.minimum(1.0, radii / np.maximum(distances, SMALLEST_NORM))
        shares = shares * (1.0 - pulls.sum()) + pulls
    return shares
