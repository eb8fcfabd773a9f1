"""Strict checks of single msgpack values: exact types, ranges, printable text. Pure.

Each check raises ValueError with a sentence of the form "got; expected". The caller, which knows the sender, turns it
into a `PeerFault`. The checks use `type(value) is int`, not isinstance, because True is an int.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import msgpack

MAX_WHOLE: Final = 2**63 - 1
MAX_REAL: Final = 1e18


def pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes) -> Any:
    """Return the msgpack value in `data`, without extension types or callbacks.

    Its containers cannot be larger than `data`, whose size the caller has bounded.
    """
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"bytes that are not msgpack ({type(error).__name__}); expected one msgpack value") from error


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities; for `parse_constant` of `json.loads`."""
    raise ValueError(f"{name} is not a JSON number")


def check_whole(name: str, value: Any, most: int = MAX_WHOLE) -> None:
    if type(value) is not int or not 0 <= value <= most:
        limit = "2**63 - 1" if most == MAX_WHOLE else str(most)
        raise ValueError(f"{name} {value!r:.40}; expected a whole number from 0 to {limit}")


def check_real(name: str, value: Any, *, at_least: float) -> None:
    if type(value) not in (int, float) or not math.isfinite(value) or not at_least <= value <= MAX_REAL:
        raise ValueError(f"{name} {value!r:.40}; expected a finite number from {at_least:g} to {MAX_REAL:g}")


def check_text(name: str, value: Any, max_length: int) -> None:
    """Check for text that is printable as in `str.isprintable`: no control, bidirectional or unassigned characters."""
    if type(value) is not str or len(value) > max_length or not value.isprintable():
        raise ValueError(f"{name} {value!r:.80}; expected at most {max_length} printable characters")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if type(value) is not str or value not in choices:
        raise ValueError(f"{name} {value!r:.40}; expected one of {', '.join(choices)}")


def check_bytes(name: str, value: Any, num_bytes: int) -> None:
    if type(value) is not bytes or len(value) != num_bytes:
        raise ValueError(f"{name} of a wrong type or length; expected {num_bytes} bytes")


def printable(text: str, keep: str = "") -> str:
    """Return `text` with U+FFFD instead of characters that a terminal would obey or hide.

    These are controls, escape sequences, bidirectional and invisible characters, and lone surrogates. `keep`:
    characters to keep.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else "\ufffd" for one in text)


def clean_text(text: str, max_length: int) -> str:
    """Return `text` without invisible characters and cut to `max_length`, so that `check_text` accepts it.

    Empty if no visible character is left.
    """
    return visible("".join(character for character in text if character.isprintable()).strip()[:max_length]).strip()


def visible(text: str) -> str:
    """Return printable `text` without characters that leave no mark; empty if none of the others can stand alone."""
    if text.isascii():
        return text
    seen = "".join(character for character in text if ord(character) not in _NO_MARK)
    return seen if any(unicodedata.category(character)[0] in "LNPS" for character in seen) else ""


def _code_points(*ranges: tuple[int, int]) -> frozenset[int]:
    return frozenset(code for first, last in ranges for code in range(first, last + 1))


_NO_MARK: Final = _code_points(
    # Default_Ignorable_Code_Point of Unicode 16, without what `str.isprintable` refuses in every version.
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian variation selectors
    (0x3164, 0x3164),  # Hangul filler
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFFA0, 0xFFA0),  # halfwidth Hangul filler
    (0xE0000, 0xE0FFF),  # tags and further variation selectors
    # Letters and symbols whose picture is empty.
    (0x2800, 0x2800),  # braille blank
    (0x303F, 0x303F),  # ideographic half fill space
    (0xFFFC, 0xFFFC),  # stands for an object that is not there
    (0x13441, 0x13442),  # Egyptian blanks
    (0x16FE4, 0x16FE4),  # Khitan filler
    (0x1D159, 0x1D159),  # musical null notehead
)
"""Characters that `str.isprintable` accepts although no font draws them."""
