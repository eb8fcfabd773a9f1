"""Cards that were made lately. One is made at a time, in a thread, and few may wait: a flood costs nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dashboard.share.card_text import Card
from dht.ground.bounds import Newest

CARD_SECONDS: Final = 300.0
"""How long a card is good; services keep theirs for days."""
MAX_CARDS: Final = 64
"""Kept: 30 kB each."""
MAX_WAITING: Final = 8
"""A card takes 0.2 s, so nobody waits for longer than two seconds."""


class TooManyCards(Exception):
    """Too many wait for cards already."""


@dataclass
class CardCache:
    """Cards by name; `clock` gives seconds that only grow."""

    clock: Callable[[], float]
    _made: Newest[str, tuple[float, bytes]] = field(default_factory=lambda: Newest(MAX_CARDS))
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)
    _num_waiting: int = 0

    async def card(self, name: str, card: Card) -> bytes:
        """The PNG of this name, made from `card` if there is none or an old one.

        Raises:
            TooManyCards: too many wait.
        """
        if (found := self._found(name)) is not None:
            return found
        if self._num_waiting >= MAX_WAITING:
            raise TooManyCards
        self._num_waiting += 1
        try:
            async with self._making:
                if (found := self._found(name)) is not None:
                    return found
                from dashboard.share.card_drawing import card_png

                png = await asyncio.to_thread(card_png, card)
                self._made[name] = self.clock(), png
                return png
        finally:
            self._num_waiting -= 1

    def _found(self, name: str) -> bytes | None:
        made_at, png = self._made.get(name, (0.0, b""))
        return png if png and self.clock() - made_at < CARD_SECONDS else None
