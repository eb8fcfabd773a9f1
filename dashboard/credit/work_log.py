"""`WorkLog`: the signed commits with a share of a machine, and a person's curve from them. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from averaging.signing.commit_credit import MachineShare
from dashboard.credit.heaviest_commit_chains import StoredReceipt
from dashboard.history_facts import WorkPoint

MAX_CURVE_POINTS: Final = 500
MAX_LED: Final = 2000
"""Newest rounds whose leaders count as witnesses."""
FIRST_DAY_SECONDS: Final = 86_400
"""During this time, a contributor's curve has a point for each minute; later one for each hour."""
SECONDS_PER_HOUR: Final = 3600


@dataclass(slots=True)
class WorkLog:
    """Receipts in the order of booking; thirty bytes each, since a run may have millions."""

    receipts: list[StoredReceipt] = field(default_factory=list)
    milli_tokens_witnessed: array[int] = field(default_factory=lambda: array("q"))
    milli_tokens_reported: array[int] = field(default_factory=lambda: array("q"))

    def book(self, receipt: StoredReceipt, share: MachineShare, sign: int) -> None:
        """Add a share (`sign` 1), or remove it (-1)."""
        if sign > 0:
            self.receipts.append(receipt)
            self.milli_tokens_witnessed.append(share.milli_witnessed)
            self.milli_tokens_reported.append(share.milli_tokens)
            return
        # Removed shares were mostly booked recently.
        for place in range(len(self.receipts) - 1, -1, -1):
            if self.receipts[place] is receipt:
                del self.receipts[place], self.milli_tokens_witnessed[place], self.milli_tokens_reported[place]
                return

    def __iter__(self) -> Iterator[tuple[StoredReceipt, int, int]]:
        """Iterate over (receipt, thousandths witnessed, thousandths reported)."""
        return zip(self.receipts, self.milli_tokens_witnessed, self.milli_tokens_reported, strict=True)


def numbers_of(logs: Iterable[WorkLog]) -> list[int]:
    """Return the numbers of the receipts in these logs, ascending."""
    return sorted({receipt.num for log in logs for receipt in log.receipts})


def leaders_of(logs: Iterable[WorkLog]) -> set[str]:
    """Return the PeerIds of the members that led and signed the newest rounds in these logs."""
    receipts = (receipt for log in logs for receipt in log.receipts)
    return {str(receipt.leader) for receipt in nlargest(MAX_LED, receipts, key=lambda receipt: receipt.num)}


def curve_of(logs: Iterable[WorkLog], first_at: float, now: float) -> list[WorkPoint]:
    """Return work over time: zero at `first_at`, then the totals at the end of each minute or hour, up to `now`.

    There are at most about `MAX_CURVE_POINTS`, evenly chosen, including the first and the last.
    """
    seconds = 60 if now - first_at <= FIRST_DAY_SECONDS else SECONDS_PER_HOUR
    work: dict[int, tuple[int, int, int]] = {}
    for log in logs:
        for receipt, more_witnessed, more_reported in log:
            place = int(receipt.at // seconds)
            held = work.get(place, (0, 0, 0))
            work[place] = (held[0] + more_witnessed, held[1] + more_reported, held[2] + bool(more_reported))
    witnessed = reported = rounds = 0
    points: list[WorkPoint] = []
    for place, (more_witnessed, more_reported, more_rounds) in sorted(work.items()):
        begin_at, end_at = place * seconds, (place + 1) * seconds
        if not points:
            points.append(WorkPoint(first_at if first_at < end_at else begin_at, 0, 0, 0))
        elif points[-1].at < begin_at < now:
            # Without work in between, the line is level.
            points.append(WorkPoint(begin_at, witnessed / 1000, reported / 1000, rounds))
        witnessed, reported, rounds = witnessed + more_witnessed, reported + more_reported, rounds + more_rounds
        points.append(WorkPoint(min(end_at, now), witnessed / 1000, reported / 1000, rounds))
    if points and points[-1].at < now:
        points.append(WorkPoint(now, witnessed / 1000, reported / 1000, rounds))
    step = -(-len(points) // MAX_CURVE_POINTS) or 1
    return points[:1] + points[1:][::-1][::step][::-1]
