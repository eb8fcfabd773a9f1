"""Frames on a pipe between a parent and its child: lengths, a JSON object, and bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

_LENGTHS = struct.Struct(">QQ")
"""Bytes of the JSON object, bytes of the body."""

Frame = tuple[dict[str, Any], bytes]


def frame_bytes(fields: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


def read_frame(read: Callable[[int], bytes], max_bytes: int) -> Frame | None:
    """Read one frame, or return None at the end of the stream, even inside a frame.

    Args:
        read: returns exactly the given number of bytes, or fewer at the end of the stream.
        max_bytes: most bytes of JSON and body together.

    Raises:
        ValueError: the frame is too long, or does not hold a JSON object.
    """
    head = read(_LENGTHS.size)
    if len(head) < _LENGTHS.size:
        return None
    text_length, body_length = _LENGTHS.unpack(head)
    if text_length + body_length > max_bytes:
        raise ValueError(f"{text_length + body_length} bytes; expected at most {max_bytes}")
    text, body = read(text_length), read(body_length)
    if len(text) < text_length or len(body) < body_length:
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"bytes that are not JSON ({type(error).__name__}); expected a JSON object") from error
    if not isinstance(fields, dict):
        raise ValueError(f"JSON of type {type(fields).__name__}; expected an object")
    return fields, body
