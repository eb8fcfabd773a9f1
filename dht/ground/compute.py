"""Port for heavy arithmetic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Compute(Protocol):
    """Port: runs work in a thread, or inline in virtual time."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


async def compute_inline(work: Callable[[], T], /) -> T:
    return work()
