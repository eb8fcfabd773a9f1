"""Unsigned LEB128 numbers, and length-prefixed messages, as libp2p and its daemon use them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class MessageError(ValueError):
    """Bytes that are not the expected message."""


def encode_varint(value: int) -> bytes:
    """Encode an unsigned LEB128 number, as multiaddrs and protobuf use it."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return (value, position after it).

    Raises:
        ValueError: the number is cut off or longer than 64 bits.
    """
    value = 0
    for index in range(10):
        if position + index >= len(data):
            raise ValueError("a number that is cut off")
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("a number longer than 64 bits")


def delimited(message: bytes) -> bytes:
    """Return the message with its length in front."""
    return encode_varint(len(message)) + message


async def read_delimited(read_exactly: Callable[[int], Awaitable[bytes]], max_bytes: int) -> bytes:
    """Return the next message, without its length. Also raises the errors of `read_exactly`.

    Raises:
        MessageError: the message is too long, or has no length in front.
    """
    num_bytes = 0
    for shift in range(0, 35, 7):
        (byte,) = await read_exactly(1)
        num_bytes |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    else:
        raise MessageError("a garbled length")
    if num_bytes > max_bytes:
        raise MessageError(f"a message of {num_bytes} bytes; expected at most {max_bytes}")
    return await read_exactly(num_bytes)
