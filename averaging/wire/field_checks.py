"""Checks of single values in the frames of rounds. Errors contain the received and the expected value. Pure.

Each field of a message declares its check beside its type (`messages.py`); `structure` applies these checks in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, get_type_hints

from dht.ground.host import PeerId

FRAME_HEAD_BYTES = 5
"""Wire version and header length."""
MAX_HEADER_BYTES = 162_000
"""The largest commit takes 161 kB: a round of 256 members with 512 shards, each with work of eight ages."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits from the manifest: sizes of the fragments (values) and the longest payload (bytes)."""

    fragment_sizes: tuple[int, ...]
    max_payload_bytes: int

    @property
    def max_frame_bytes(self) -> int:
        return FRAME_HEAD_BYTES + MAX_HEADER_BYTES + self.max_payload_bytes


Check = Callable[[Any, Limits], Any]
WholeCheck = Callable[[Any, PeerId, Limits], None]


def fail(got: object, expected: str) -> ValueError:
    """Return the error for a wrong value, for the caller to raise; the received value is shortened to 60 characters."""
    shown = repr(got)
    return ValueError(f"got {shown[:60]}{'...' if len(shown) > 60 else ''}; expected {expected}")


def integer(low: int, high: int) -> Check:
    """Accept whole numbers from `low` to `high`."""

    def check(value: Any, _limits: Limits) -> int:
        # Not isinstance, which would accept True: a bool is an int.
        if type(value) is not int or not low <= value <= high:
            raise fail(value, f"a whole number from {low} to {high}")
        return value

    return check


def number(high: float) -> Check:
    """Accept finite numbers from 0 to `high`, as float."""

    def check(value: Any, _limits: Limits) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= high:
            raise fail(value, f"a finite number from 0 to {high:g}")
        return float(value)

    return check


def boolean(value: Any, _limits: Limits) -> bool:
    if type(value) is not bool:
        raise fail(value, "true or false")
    return value


def text(at_least: int, at_most: int, expected: str) -> Check:
    """Accept printable text of `at_least` to `at_most` characters; `expected` describes it in the error."""

    def check(value: Any, _limits: Limits) -> str:
        if type(value) is not str or not at_least <= len(value) <= at_most or not value.isprintable():
            raise fail(value, expected)
        return value

    return check


def peer_id(value: Any, _limits: Limits) -> PeerId:
    if type(value) is not str or not 20 <= len(value) <= 80 or not value.isascii() or not value.isalnum():
        raise fail(value, "a peer id")
    return PeerId(value)


def octets(what: str, num_bytes: int) -> Check:
    """Accept exactly `num_bytes` bytes; `what` is their name in the error."""

    def check(value: Any, _limits: Limits) -> bytes:
        if type(value) is not bytes or len(value) != num_bytes:
            raise fail(value, f"{what} of {num_bytes} bytes")
        return value

    return check


def or_void(check_it: Check, void: bytes | str) -> Check:
    """Accept what `check_it` accepts, or this empty value."""

    def check(value: Any, limits: Limits) -> Any:
        return void if type(value) is type(void) and not value else check_it(value, limits)

    return check


def fragment(value: Any, limits: Limits) -> int:
    return int(integer(0, len(limits.fragment_sizes) - 1)(value, limits))


def members(most: int) -> Check:
    """Decode roster numbers from their mask: bit n of the little-endian number stands for member n."""

    def check(value: Any, _limits: Limits) -> tuple[int, ...]:
        if type(value) is not bytes or len(value) > most // 8 or value.endswith(b"\0"):
            raise fail(value, f"a mask of at most {most // 8} bytes, the last one not zero")
        return _numbers_in(value)

    return check


_NUMBERS_IN_BYTE = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))


@lru_cache(maxsize=1024)
def _numbers_in(mask: bytes) -> tuple[int, ...]:
    """Return the numbers of the set bits. Cached because a large commit has a mask for each shard, mostly equal
    ones.
    """
    return tuple(8 * place + bit for place, byte in enumerate(mask) for bit in _NUMBERS_IN_BYTE[byte])


@lru_cache(maxsize=1024)
def mask_of(members: tuple[int, ...]) -> bytes:
    """Return the mask that represents roster numbers on the wire."""
    mask = bytearray(max(members, default=-1) // 8 + 1)
    for index in members:
        mask[index >> 3] |= 1 << (index & 7)
    return bytes(mask)


_CHECKS: dict[type[Any], dict[str, Check]] = {}


def checks_of(kind: type[Any]) -> dict[str, Check]:
    """Return field -> the check that its annotation declares, in the order of the fields on the wire."""
    if kind not in _CHECKS:
        hints = get_type_hints(kind, include_extras=True)
        _CHECKS[kind] = {field.name: hints[field.name].__metadata__[0] for field in fields(kind)}
    return _CHECKS[kind]


def structure(kind: type[Any], expected: str = "") -> Check:
    """Check a value within a message: a list of its fields in the order of its dataclass."""

    def check(value: Any, limits: Limits) -> Any:
        checks = checks_of(kind)
        if type(value) is not list or len(value) != len(checks):
            raise fail(value, expected or f"[{', '.join(checks)}]")
        return kind(*(check_field(item, limits) for check_field, item in zip(checks.values(), value, strict=True)))

    return check


def rows(check_row: Check, most: int) -> Check:
    """Accept a list of at most `most` values that `check_row` accepts, as a tuple."""

    def check(value: Any, limits: Limits) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > most:
            raise fail(value, f"a list of at most {most}")
        return tuple(check_row(row, limits) for row in value)

    return check
