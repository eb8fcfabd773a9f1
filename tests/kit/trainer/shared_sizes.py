"""One child for all architectures of a test process: hundreds of tests would each wait for torch and transformers."""

from __future__ import annotations

import atexit
from types import TracebackType
from typing import Any, Self

from dht.ground.errors import LocalFault
from peer.limited_child.frames import Frame
from peer.limited_child.limited_child import LimitedChild
from peer.memory import architecture_sizes

OWN_CHILD = LimitedChild
"""What the product starts."""
_children: list[LimitedChild] = []


class SharedChild:
    """Stands where `peer.memory.architecture_sizes` starts a child, and asks the one that runs already."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def start(self) -> None:
        if not _children:
            _children.append(OWN_CHILD(*self._arguments))
            _children[0].start()

    def ask(self, question: dict[str, Any]) -> Frame:
        try:
            return _children[0].ask(question)
        except LocalFault:
            if _children[0].has_ended:
                close()
            raise


def close() -> None:
    while _children:
        _children.pop().close()


def share_sizes_child() -> None:
    architecture_sizes.LimitedChild = SharedChild  # type: ignore[assignment,misc]
    atexit.register(close)
