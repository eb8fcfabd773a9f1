"""Upload and download limits of a volunteer: a token bucket for each direction, shared by all streams of a host. Also
the line's pace for the streams of one protocol.

All data on this host's streams, such as rounds and state for joiners, passes through the same two buckets. Messages of
the DHT and the transport themselves do not; they are a few hundred bytes per second.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

LINE_BYTES_PER_BYTE: Final = 1.045
"""Bytes on the line for one byte of a stream, with the headers of yamux, Noise, TCP and IP; see
benchmarks/README.md."""
BURST_SECONDS: Final = 0.02
"""Seconds of unused allowance that are kept: a burst must fit the router's queue, together with other traffic."""
URGENT_BYTES: Final = 4096
"""Frames up to this size (plans, offers, signs of life) are counted but never wait behind bulk data."""
PIECE_SECONDS: Final = 0.01
"""Time of one piece of bulk data, so that data flows evenly instead of in bursts."""
SMALLEST_PIECE_BYTES: Final = 4096
LARGEST_PIECE_BYTES: Final = 256 * 1024


class TokenBucket:
    """Token bucket in which a sender may leave a debt; the next sender waits until it is paid off. Pure.

    Args:
        bytes_per_second: the limit.
        now: seconds of a monotonic clock.
    """

    def __init__(self, bytes_per_second: float, now: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._level_bytes = bytes_per_second * BURST_SECONDS
        self._at = now

    def take(self, num_bytes: float, now: float) -> float:
        """Take `num_bytes`, and return the seconds to wait before sending them."""
        self._earn(now)
        wait_seconds = max(0.0, -self._level_bytes / self.bytes_per_second)
        self._level_bytes -= num_bytes
        return wait_seconds

    def change(self, bytes_per_second: float, now: float) -> None:
        """Change the limit; debts stay."""
        self._earn(now)
        self.bytes_per_second = bytes_per_second

    def _earn(self, now: float) -> None:
        earned = max(0.0, now - self._at) * self.bytes_per_second
        self._level_bytes = min(self.bytes_per_second * BURST_SECONDS, self._level_bytes + earned)
        self._at = max(self._at, now)


class Pace:
    """Pace of one direction of a host, with waits from a token bucket.

    Args:
        bits_per_second: the limit on the line, including all headers; None: no waits until `follow` is called.
        clock, sleep: replaced in tests.
        within: a pace that the same data must also pass.
    """

    def __init__(
        self,
        bits_per_second: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        within: Pace | None = None,
    ) -> None:
        self.passed_bytes = 0
        """Bytes so far, including those that did not wait."""
        self._bucket: TokenBucket | None = None
        self._clock = clock
        self._sleep = sleep
        self._within = within
        self.limit(bits_per_second)

    def limit(self, bits_per_second: float | None) -> None:
        """Set a limit as in the constructor; None: no limit."""
        if bits_per_second is None:
            self._bucket = None
        else:
            self.follow(bits_per_second / 8 / LINE_BYTES_PER_BYTE)

    def follow(self, bytes_per_second: float) -> None:
        """Set the rate to the line's capacity for frame bytes."""
        if self._bucket is None:
            self._bucket = TokenBucket(bytes_per_second, self._clock())
        else:
            self._bucket.change(bytes_per_second, self._clock())

    @property
    def is_free(self) -> bool:
        """Whether data passes without waiting."""
        return self._bucket is None and (self._within is None or self._within.is_free)

    @property
    def piece_bytes(self) -> int:
        """Bytes of a frame that pass at once."""
        most = LARGEST_PIECE_BYTES if self._within is None else self._within.piece_bytes
        if self._bucket is None:
            return most
        wanted = math.ceil(self._bucket.bytes_per_second * PIECE_SECONDS)
        return min(max(wanted, SMALLEST_PIECE_BYTES), most)

    def count(self, num_bytes: int) -> None:
        """Count bytes that pass without waiting; later bytes wait for them."""
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
    """Paces of both directions; None: as fast as the transport allows."""

    upload: Pace | None = None
    download: Pace | None = None


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Limits in bits per second on the line; None: no limit."""

    upload_bits_per_second: float | None = None
    download_bits_per_second: float | None = None

    def paces(self, clock: Callable[[], float]) -> Paces:
        """Return the paces of a new host; a pace without a limit lets all data pass until it gets one."""
        return Paces(Pace(self.upload_bits_per_second, clock), Pace(self.download_bits_per_second, clock))
