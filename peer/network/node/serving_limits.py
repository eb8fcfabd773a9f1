"""Limits of the upload for newcomers that fetch state, and of memory for each remote."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from averaging.lanes.links import Links
from averaging.transfer.messages import MAX_TRANSFERS
from dht.ground.errors import UsageFault
from dht.ground.quantities import bytes_text

SERVING_SHARE: Final = 0.5
"""Share of the measured upload rate: a newcomer has other donors, and a late round costs all members."""


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Limits that the owner sets.

    Attributes:
        bits_per_second: all transfers together.
        max_transfers: pieces served at once; others wait their turn or ask another donor.
    """

    bits_per_second: float = math.inf
    max_transfers: int = MAX_TRANSFERS

    def now(self, links: Links) -> float:
        """Upload for newcomers now: at most half of the line while rounds, which have deadlines, need it."""
        rate = links.traffic.upload_bits_per_second
        return min(self.bits_per_second, SERVING_SHARE * rate if rate and links.has_bulk_waiting else math.inf)


FREELY: Final = ServingLimits()
"""As much as rounds leave."""


def bytes_per_peer(asked_mb: int | None, max_frame_bytes: int) -> int:
    """Memory for what one remote sends, in a run with frames of at most `max_frame_bytes`.

    Half of it is for frames under way: unless somebody asked for less, two of the largest.

    Raises:
        UsageFault: not even one of the largest frames fits into what was asked for.
    """
    if asked_mb is None:
        return 4 * max_frame_bytes
    if asked_mb * 10**6 < 2 * max_frame_bytes:
        raise UsageFault(
            f"--max-memory-mb-per-peer is {asked_mb} and a frame of this run takes up to "
            f"{bytes_text(max_frame_bytes)}; expected at least {math.ceil(2 * max_frame_bytes / 10**6)}; allow more, "
            "or join a run with a smaller model"
        )
    return asked_mb * 10**6
