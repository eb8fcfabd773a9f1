"""What a peer gives of its line to newcomers that fetch its state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from averaging.links import Links
from averaging.state_messages import MAX_TRANSFERS

SERVING_SHARE: Final = 0.5
"""Of the measured upload rate: a newcomer has other donors, and a round that is late costs everybody."""


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """What its owner allows.

    Attributes:
        bits_per_second: all transfers together.
        max_transfers: pieces served at once; others wait their turn or ask another donor.
    """

    bits_per_second: float = math.inf
    max_transfers: int = MAX_TRANSFERS

    def now(self, links: Links) -> float:
        """What newcomers may have now: no more than half of the line while rounds, which have deadlines, want it."""
        rate = links.traffic.upload_bits_per_second
        return min(self.bits_per_second, SERVING_SHARE * rate if rate and links.has_bulk_waiting else math.inf)


FREELY: Final = ServingLimits()
"""As much as rounds leave."""
