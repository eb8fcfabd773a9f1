"""Which text only measures the loss: a rule on each document alone. Pure.

Everybody who has a document holds out the same of it, whatever other files there are:

- A short document is held out whole, or not at all, by the hash of its text. A document that comes twice is on one side
  both times.
- A long document is divided into sections of about `SECTION_BYTES`. One block of each section is held out. The length
  of the document decides where the block stands.

Text that is too little for this rule (a few short documents) has no such part. `more_held_out` then widens the rule
until the share is full.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import blake3

LONG_BYTES = 1 << 14
"""A longer document is cut. Of raw shards this counts tokens."""
SECTION_BYTES = 1 << 20
"""The held-out blocks of a long document are about so far apart. At 5 % each has 50 kB, many contexts."""
DIVISION = 2
"""The version of this rule, part of the key of everything that was divided with it."""
MOST_HELD_OUT = 0.5
"""Of text of which the asked share is less than a context."""
_KEPT_DOCUMENTS = 500
"""The short documents with the smallest hashes, of which `more_held_out` chooses: 20 kB as JSON."""


@dataclass(frozen=True, slots=True)
class HeldOutRule:
    """What is held out.

    Attributes:
        share: of each long document.
        whole_below: short documents with a smaller hash are held out whole.
        cut_at: the hash of the one short document of which a block of `cut_bytes` is held out; None: none is cut.
    """

    share: float
    whole_below: float
    cut_at: float | None = None
    cut_bytes: int = 0

    @classmethod
    def of(cls, fraction: float) -> HeldOutRule:
        """The rule of a share of all text."""
        return cls(fraction, fraction)


@dataclass
class ShortDocuments:
    """The short documents that were met, as `more_held_out` needs them.

    Attributes:
        num_bytes: of all of them.
    """

    num_bytes: int = 0
    _largest_first: list[tuple[float, int]] = field(default_factory=list)

    def add(self, fraction: float, num_bytes: int) -> None:
        """Count a document; only those with the smallest hashes are kept."""
        self.num_bytes += num_bytes
        keep = heapq.heappush if len(self._largest_first) < _KEPT_DOCUMENTS else heapq.heappushpop
        keep(self._largest_first, (-fraction, num_bytes))

    @property
    def smallest(self) -> list[tuple[float, int]]:
        """(hash, bytes) of those with the smallest hashes, in their order."""
        return sorted((-negative, num_bytes) for negative, num_bytes in self._largest_first)


def hash_fraction(content: bytes) -> float:
    """A number in [0, 1) that only the content decides, even over all contents."""
    return fraction_of(blake3.blake3(b"held-out|" + content))


def fraction_of(hasher: blake3.blake3) -> float:
    """The same of a hasher that began with ``held-out|`` and got the content in pieces."""
    return int.from_bytes(hasher.digest(8), "big") / 2**64


def edges_of(length: int, share: float) -> list[int]:
    """Where a long document changes sides: the first part is trained on, the next one is held out, and so on."""
    num_sections = -(-length // SECTION_BYTES)
    edges: list[int] = []
    for number in range(num_sections):
        start, stop = number * length // num_sections, (number + 1) * length // num_sections
        edges += _block(start, stop, int((stop - start) * share))
    return edges


def _block(start: int, stop: int, length: int) -> list[int]:
    """(start, stop) of a held-out block; empty where it has no length."""
    if not length:
        return []
    room = stop - start - length
    first = start + int(hash_fraction(f"block {start} {stop}".encode()) * (room + 1))
    return [first, first + length]


def edges_of_short(fraction: float, length: int, rule: HeldOutRule) -> list[int]:
    """Where a short document with this hash changes sides, as `edges_of`."""
    if fraction < rule.whole_below:
        return [0, length]
    return _block(0, length, min(rule.cut_bytes, length)) if fraction == rule.cut_at else []


def more_held_out(share: float, num_short_bytes: int, smallest: Iterable[tuple[float, int]]) -> HeldOutRule:
    """The rule for text of which the rule on each document alone leaves too little on one side.

    Short documents are held out in the order of their hashes while they fit into the share; the next one is cut. So
    exactly this share is held out of any number of documents, and a document larger than the share does not go whole.

    Args:
        share: of all text, at most `MOST_HELD_OUT`.
        num_short_bytes: of all short documents.
        smallest: (hash, bytes) of those with the smallest hashes.
    """
    room, fraction = max(1, int(num_short_bytes * share)), 0.0
    for fraction, group in itertools.groupby(sorted(smallest), lambda document: document[0]):
        same = [num_bytes for _, num_bytes in group]  # what comes twice is cut twice
        if sum(same) > room:
            cut_bytes = room // len(same)
            return HeldOutRule(share, fraction, fraction if cut_bytes else None, cut_bytes)
        room -= sum(same)
    return HeldOutRule(share, math.nextafter(fraction, 1))


def cut_document(content: bytes, edges: Sequence[int]) -> Iterator[tuple[bytes, bool]]:
    """(part, whether it is held out) of a document of UTF-8 text, at ends of lines near its edges where there are some.

    Parts join to the whole again; empty ones are left out.
    """
    start, is_held, slack = 0, False, slack_of(edges)
    for edge in [*edges, len(content)]:
        stop = edge
        if edge < len(content) and edge and content[edge - 1 : edge] != b"\n":
            stop += bytes_to_edge(content[edge : edge + slack], content[edge : edge + 4], edge + slack >= len(content))
        stop = max(start, stop)
        if stop > start:
            yield content[start:stop], is_held
        start, is_held = stop, not is_held


def slack_of(edges: Sequence[int]) -> int:
    """How far behind an edge the end of a line may be: a held-out block keeps three quarters of its length."""
    blocks = zip(edges[::2], edges[1::2], strict=True)
    return min((stop - start for start, stop in blocks), default=0) // 4


def bytes_to_edge(within_slack: bytes, following: bytes, is_end: bool) -> int:
    """How many of the bytes behind an edge belong to what stands before it.

    Args:
        within_slack: the bytes behind the edge in which a line may end.
        following: at least the next four.
        is_end: the document ends with `within_slack`.
    """
    line_end = within_slack.find(b"\n")
    if line_end >= 0:
        return line_end + 1
    if is_end:
        return len(within_slack)
    # A character of UTF-8 has at most three bytes of this form behind its first one.
    return next((index for index, byte in enumerate(following[:3]) if byte & 0xC0 != 0x80), min(3, len(following)))
