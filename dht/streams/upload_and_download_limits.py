"""Upload and download limits that a volunteer sets: a token bucket per direction, shared by all streams of a host. And
the pace that the line takes, for the streams of one protocol.

Rounds, state for joiners and everything else on this host's streams pass through the same two buckets. What the DHT
and the transport say among themselves does not; it is a few hundred bytes per second.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

LINE_BYTES_PER_BYTE: Final = 1.045
"""What a byte of a stream costs on the line, with the headers of yamux, Noise, TCP and IP; see benchmarks/README.md."""
BURST_SECONDS: Final = 0.02
"""Of unused allowance that is kept: what comes at once must fit the router's queue, together with that of others."""
URGENT_BYTES: Final = 4096
"""Frames up to this size (plans, offers, signs of life) are counted but never wait behind bulk data."""
PIECE_SECONDS: Final = 0.01
"""Bulk data passes in pieces that take about this long, so that it flows instead of coming in bursts."""
SMALLEST_PIECE_BYTES: Final = 4096
LARGEST_PIECE_BYTES: Final = 256 * 1024


class TokenBucket:
    """A sender that takes more than is there leaves a debt, and the next one waits until it is paid off. Pure.

    Args:
        bytes_per_second: the limit.
        now: seconds of any clock that never goes back.
    """

    def __init__(self, bytes_per_second: float, now: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._level_bytes = bytes_per_second * BURST_SECONDS
        self._at = now

    def take(self, num_bytes: float, now: float) -> float:
        """Take `num_bytes`; returns the seconds to wait before they may pass."""
        self._earn(now)
        wait_seconds = max(0.0, -self._level_bytes / self.bytes_per_second)
        self._level_bytes -= num_bytes
        return wait_seconds

    def change(self, bytes_per_second: float, now: float) -> None:
        """From now on another limit holds; debts stay."""
        self._earn(now)
        self.bytes_per_second = bytes_per_second

    def _earn(self, now: float) -> None:
        earned = max(0.0, now - self._at) * self.bytes_per_second
        self._level_bytes = min(self.bytes_per_second * BURST_SECONDS, self._level_bytes + earned)
        self._at = max(self._at, now)


class Pace:
    """One direction of a host: waits as its bucket says.

    Args:
        bits_per_second: the limit on the line, all headers included; None: nothing waits until `follow` is called.
        clock, sleep: replaced in tests.
        within: what passes here must pass there as well.
    """

    def __init__(
        self,
        bits_per_second: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        within: Pace | None = None,
    ) -> None:
        self.passed_bytes = 0
        """So far, whether they waited or not."""
        self._bucket: TokenBucket | None = None
        self._clock = clock
        self._sleep = sleep
        self._within = within
        self.limit(bits_per_second)

    def limit(self, bits_per_second: float | None) -> None:
        """From now on this limit holds, as given to the constructor; None: none."""
        if bits_per_second is None:
            self._bucket = None
        else:
            self.follow(bits_per_second / 8 / LINE_BYTES_PER_BYTE)

    def follow(self, bytes_per_second: float) -> None:
        """The line takes so much of the frames' own bytes."""
        if self._bucket is None:
            self._bucket = TokenBucket(bytes_per_second, self._clock())
        else:
            self._bucket.change(bytes_per_second, self._clock())

    @property
    def is_free(self) -> bool:
        """Nothing waits here now."""
        return self._bucket is None and (self._within is None or self._within.is_free)

    @property
    def piece_bytes(self) -> int:
        """How much of a frame passes at once."""
        most = LARGEST_PIECE_BYTES if self._within is None else self._within.piece_bytes
        if self._bucket is None:
            return most
        wanted = math.ceil(self._bucket.bytes_per_second * PIECE_SECONDS)
        return min(max(wanted, SMALLEST_PIECE_BYTES), most)

    def count(self, num_bytes: int) -> None:
        """Bytes that do not wait; others wait for them."""
        self.passed_bytes += num_bytes
        if self._bucket is not None:
            self._bucket.take(num_bytes, self._clock())
        if self._within is not None:
            self._within.count(num_bytes)

    async def let_pass(self, num_bytes: int) -> None:
        if self._bucket is not None:
            wait_seconds = self._bucket.take(num_bytes, self._clock())
            if wait_seconds > 0:
                await self._sleep(wait_seconds)
        if self._within is not None:
            await self._within.let_pass(num_bytes)
        self.passed_bytes += num_bytes


@dataclass(frozen=True, slots=True)
class Paces:
    """Both directions; None: as fast as the transport takes and gives."""

    upload: Pace | None = None
    download: Pace | None = None


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Bits per second on the line; None: no limit."""

    upload_bits_per_second: float | None = None
    download_bits_per_second: float | None = None

    def paces(self, clock: Callable[[], float]) -> Paces:
        """The buckets of a host that begins now; without a limit a bucket lets everything pass, until it gets one."""
        return Paces(Pace(self.upload_bits_per_second, clock), Pace(self.download_bits_per_second, clock))
