"""What a library might do to the child that it runs in: a module for `LimitedChild`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dht.ground.errors import Incompatible
from peer.limited_child.process import LEFT_OUT


class PanicException(BaseException):
    """As libraries in Rust raise it."""


def prepare(setup: dict[str, Any]) -> Any:
    def answer(question: dict[str, Any], body: bytes) -> Any:
        result = globals()[question["do"]](question, body)
        return result if isinstance(result, tuple) else {"result": result}

    if setup.get("fails"):
        raise Incompatible("such a setup")
    return answer


def echo(question: dict[str, Any], body: bytes) -> Any:
    print("a library's own words")
    return question, body[::-1]


def many_objects(*_: Any) -> int:
    return len({number: str(number) for number in range(10**9)})


def big_block(*_: Any) -> int:
    return len(bytearray(8 << 30))


def c_block(*_: Any) -> int:
    """As C takes memory: a null pointer when there is none, and then a crash."""
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    place = malloc(8 << 30)
    if not place:
        os.write(2, b"memory allocation of 8589934592 bytes failed\n")
        os.abort()
    return int(place)


def loop(*_: Any) -> None:
    while True:
        pass


def loop_in_c(*_: Any) -> None:
    """Holds Python's lock, so that no other thread of the child runs."""
    pow(3, 10**9)


def python_socket(*_: Any) -> None:
    socket.socket()


def look_up(*_: Any) -> None:
    socket.getaddrinfo("localhost", 80)


def c_socket(question: dict[str, Any], *_: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.socket(question["family"], 1, 0)
    return ctypes.get_errno() if number < 0 else 0


def environment(*_: Any) -> dict[str, str]:
    return dict(os.environ)


def files(*_: Any) -> list[Any]:
    return [str(Path.home()), os.getcwd(), os.listdir("."), os.path.exists(os.path.expanduser("~/secret"))]


def abort(*_: Any) -> None:
    os.write(2, b"thread 'main' panicked\n")
    os.abort()


def crash(*_: Any) -> None:
    ctypes.string_at(0)


def panic(*_: Any) -> None:
    raise PanicException("called `Option::unwrap()`\non a \x1b[31mNone\x1b[0m value")


def leave(*_: Any) -> None:
    sys.exit(3)


def refuse(*_: Any) -> None:
    raise Incompatible("this file; expected another; take another")


def long_answer(question: dict[str, Any], *_: Any) -> Any:
    return {}, bytes(question["length"])


def no_answer(question: dict[str, Any], body: bytes) -> None:
    """As code that has taken over the process: the pipe to the parent is among its open files."""
    for number in range(3, 16):
        with contextlib.suppress(OSError):
            os.write(number, body)
    signal.pause()


def process_id(*_: Any) -> list[int]:
    return [os.getpid(), os.getpgrp()]


def libraries(*_: Any) -> list[str]:
    return [name for name in LEFT_OUT if find_spec(name) is not None]
