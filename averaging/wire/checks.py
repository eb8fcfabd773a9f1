"""Checks of single values in the frames of rounds: what was got, what was expected. Pure.

`frames.py` and `cell_checks.py` put them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from averaging.wire.messages import DIGEST_BYTES, MAX_NUM_ROUNDS, MAX_ROSTER, MAX_STEPS, MAX_TOKENS, SIGNATURE_BYTES
from dht.host import PeerId
from dht.records.lineages import MAX_VERSION

FRAME_HEAD_BYTES = 5
"""Wire version and header length."""
MAX_HEADER_BYTES = 128_000
"""The largest commit takes 126 kB: that of a round of 256 cells, of a cell of 128 members."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the manifest allows on the wire: sizes of the fragments (values) and the longest payload (bytes)."""

    fragment_sizes: tuple[int, ...]
    max_payload_bytes: int

    @property
    def max_frame_bytes(self) -> int:
        return FRAME_HEAD_BYTES + MAX_HEADER_BYTES + self.max_payload_bytes


Check = Callable[[Any, Limits], Any]
WholeCheck = Callable[[Any, PeerId, Limits], None]


def fail(got: object, expected: str) -> ValueError:
    shown = repr(got)
    return ValueError(f"got {shown[:60]}{'...' if len(shown) > 60 else ''}; expected {expected}")


def integer(low: int, high: int) -> Check:
    def check(value: Any, _limits: Limits) -> int:
        if type(value) is not int or not low <= value <= high:
            raise fail(value, f"a whole number from {low} to {high}")
        return value

    return check


def number(high: float) -> Check:
    def check(value: Any, _limits: Limits) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= high:
            raise fail(value, f"a finite number from 0 to {high:g}")
        return float(value)

    return check


def boolean(value: Any, _limits: Limits) -> bool:
    if type(value) is not bool:
        raise fail(value, "true or false")
    return value


def text(value: Any, _limits: Limits) -> str:
    if type(value) is not str or len(value) > 200 or not value.isprintable():
        raise fail(value, "printable text of at most 200 characters")
    return value


def peer_id(value: Any, _limits: Limits) -> PeerId:
    if type(value) is not str or not 20 <= len(value) <= 80 or not value.isascii() or not value.isalnum():
        raise fail(value, "a peer id")
    return PeerId(value)


def digest(value: Any, _limits: Limits) -> bytes:
    if type(value) is not bytes or len(value) != DIGEST_BYTES:
        raise fail(value, f"a digest of {DIGEST_BYTES} bytes")
    return value


def digest_or_void(value: Any, limits: Limits) -> bytes:
    return b"" if value == b"" and type(value) is bytes else digest(value, limits)


def signature(value: Any, _limits: Limits) -> bytes:
    if type(value) is not bytes or len(value) != SIGNATURE_BYTES:
        raise fail(value, f"a signature of {SIGNATURE_BYTES} bytes")
    return value


def signature_or_void(value: Any, limits: Limits) -> bytes:
    return b"" if value == b"" and type(value) is bytes else signature(value, limits)


def fragment(value: Any, limits: Limits) -> int:
    return int(integer(0, len(limits.fragment_sizes) - 1)(value, limits))


def structure(kind: Callable[..., Any], expected: str, *checks: Check) -> Check:
    """The fields of a value within a message, as a list in the order of its dataclass."""

    def check(value: Any, limits: Limits) -> Any:
        if type(value) is not list or len(value) != len(checks):
            raise fail(value, expected)
        return kind(*(check_field(item, limits) for check_field, item in zip(checks, value, strict=True)))

    return check


def rows(check_row: Callable[[list[Any], Limits], Any], most: int) -> Check:
    def check(value: Any, limits: Limits) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > most:
            raise fail(value, f"a list of at most {most}")
        return tuple(check_row(row, limits) for row in value)

    return check


VERSION = integer(0, MAX_VERSION)
TOKENS = integer(1, MAX_TOKENS)
STEPS = integer(1, MAX_STEPS)
VALUE = integer(0, 2**40)
MEMBER = integer(0, MAX_ROSTER - 1)
ATTEMPT = integer(0, 10_000)
NUM_ROUNDS = integer(0, MAX_NUM_ROUNDS)


def members(value: Any, _limits: Limits) -> tuple[int, ...]:
    """Roster numbers from their mask: bit n of the little-endian number stands for member n."""
    if type(value) is not bytes or len(value) > MAX_ROSTER // 8 or value.endswith(b"\0"):
        raise fail(value, f"a mask of at most {MAX_ROSTER // 8} bytes, the last one not zero")
    mask = int.from_bytes(value, "little")
    return tuple(index for index in range(mask.bit_length()) if mask >> index & 1)


def mask_of(members: tuple[int, ...]) -> bytes:
    """Roster numbers as the mask that stands for them on the wire."""
    mask = sum(1 << index for index in set(members))
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")
