"""Prints the published table of bandwidth needed, as the model gives it, with this project's rounds beside it.

Run it with `python -m benchmarks.planning.published_bandwidths`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from averaging.codec.codec import make_codec
from benchmarks.planning.utilisation import (
    DATA_PARALLEL,
    GRID_BITS_PER_SECOND,
    PUBLISHED_GBITS_PER_SECOND,
    PUBLISHED_LAYERS_PER_FRAGMENT,
    PUBLISHED_METHODS,
    PUBLISHED_MODELS,
    PUBLISHED_SYNC_EVERY,
    TARGETS,
    LayeredModel,
    kept_pace,
    listed_bandwidths,
    needed_bandwidths,
)
from peer.config.averaging_rules import BLOCK_SIZE
from peer.config.manifest import AveragingSection
from peer.plan.round_seconds import MemberLink, round_traffic

OWN_CODEC = "int4"

PRINTED_WITHIN_BITS_PER_SECOND = 0.06e9
"""One decimal, and some cells of the paper are cut and others rounded."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One method on one model.

    Attributes:
        bits_per_second: needed per target; None beyond the grid.
        published: what the paper lists, in bits/s; None where it has no such row.
        times_less: data-parallel over this row, both from the model; None for the paper's own rows.
    """

    model: str
    method: str
    bits_per_second: tuple[float | None, ...]
    published: tuple[float, ...] | None = None
    times_less: tuple[float | None, ...] | None = None


def bandwidth_table() -> tuple[TableRow, ...]:
    """Per model the rows of the paper, then this project's with the paper's H and with the default one.

    Those are rounds of two peers, 4-bit, in a mode that does not wait.
    """
    rows: list[TableRow] = []
    for model in PUBLISHED_MODELS:
        for method, listed in zip(PUBLISHED_METHODS, PUBLISHED_GBITS_PER_SECOND[model.name], strict=True):
            published = tuple(1e9 * gbits for gbits in listed)
            rows.append(TableRow(model.name, method.name, needed_bandwidths(model, method), published))
        interval_bits = own_interval_bits(model)
        data_parallel = needed_bandwidths(model, DATA_PARALLEL)
        for sync_every in (PUBLISHED_SYNC_EVERY, AveragingSection().sync_every):
            own = listed_bandwidths(partial(kept_pace, interval_bits, sync_every * model.step_seconds))
            times = tuple(
                None if there is None or here is None else there / here
                for there, here in zip(data_parallel, own, strict=True)
            )
            rows.append(TableRow(model.name, f"this project, H = {sync_every}", own, None, times))
    return tuple(rows)


def own_interval_bits(model: LayeredModel) -> float:
    """Bits that each of two peers sends while every fragment has one round: all parameters, all framing."""
    num_fragments = model.num_layers // PUBLISHED_LAYERS_PER_FRAGMENT
    codec = make_codec(OWN_CODEC, BLOCK_SIZE)
    cuts = [model.num_parameters * fragment // num_fragments for fragment in range(num_fragments + 1)]
    counts = Counter(end - start for start, end in itertools.pairwise(cuts))
    lines = [MemberLink(1e9, 1e9)] * 2
    return sum(8 * count * round_traffic(size, codec, lines)[0].bytes_up for size, count in counts.items())


@dataclass(frozen=True, slots=True)
class FigureAgreement:
    """How many cells of the paper's rows the model gives as printed (to 0.06 Gbit/s), and within one grid point."""

    exact: int
    near: int
    cells: int


def agreement(rows: Sequence[TableRow]) -> FigureAgreement:
    """Of the rows that have a published counterpart."""
    cells = [cell for row in rows if row.published for cell in zip(row.bits_per_second, row.published, strict=True)]
    return FigureAgreement(
        exact=sum(ours is not None and is_as_printed(ours, listed) for ours, listed in cells),
        near=sum(ours is not None and abs(_grid_point(ours) - _grid_point(listed)) <= 1 for ours, listed in cells),
        cells=len(cells),
    )


def is_as_printed(bits_per_second: float, published: float) -> bool:
    """Whether the paper's number with one decimal can be this one."""
    return abs(bits_per_second - published) < PRINTED_WITHIN_BITS_PER_SECOND


def _grid_point(bits_per_second: float) -> int:
    return min(range(len(GRID_BITS_PER_SECOND)), key=lambda point: abs(GRID_BITS_PER_SECOND[point] - bits_per_second))


def _cell(bits_per_second: float | None, published: float | None) -> str:
    shown = "-" if bits_per_second is None else f"{bits_per_second / 1e9:.1f}"
    if published is None or (bits_per_second is not None and is_as_printed(bits_per_second, published)):
        return shown
    return f"{shown} ({published / 1e9:.1f})"


def main() -> None:
    rows = bandwidth_table()
    print(f"{'model':<6}{'Gbit/s needed to compute':<30}" + "".join(f"{target:>15.0%}" for target in TARGETS))
    for row in rows:
        published = row.published or (None,) * len(TARGETS)
        cells = (_cell(bits, listed) for bits, listed in zip(row.bits_per_second, published, strict=True))
        print(f"{row.model:<6}{row.method:<30}" + "".join(f"{cell:>15}" for cell in cells))
        if row.times_less is not None:
            times = ("-" if factor is None else f"{factor:.0f} x" for factor in row.times_less)
            print(f"{'':<6}{'  less than data-parallel':<30}" + "".join(f"{factor:>15}" for factor in times))
    shares = agreement(rows)
    print(f"{shares.exact} of {shares.cells} cells are those of arXiv 2501.18512, table 4.")
    print(f"{shares.near} are within one point of its grid. In brackets: the paper's, where it differs.")


if __name__ == "__main__":
    main()
