"""The rule that chooses the held-out text, which only measures the loss. It is applied to each document alone. Pure.

All peers that have a document hold out the same parts of it, whatever other files they have:

- A short document is held out whole or not at all, by the hash of its text. Two copies of a document are on the same
  side.
- A long document is divided into sections of about `SECTION_BYTES`. One block of each section is held out. The length
  of the document determines the position of the block.

A few short documents may have no held-out text by this rule. `more_held_out` then widens the rule until the share is
reached.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import blake3

LONG_BYTES = 1 << 14
"""Length above which a document is divided; for raw shards, in tokens."""
SECTION_BYTES = 1 << 20
"""Approximate distance between the held-out blocks of a long document. At 5 % each has 50 kB, many contexts."""
DIVISION = 2
"""The version of this rule, part of the cache key of all text divided by it."""
MOST_HELD_OUT = 0.5
"""Largest share held out of text whose requested share is less than a context."""
_KEPT_DOCUMENTS = 500
"""Number of short documents with the smallest hashes, among which `more_held_out` chooses: 20 kB as JSON."""


@dataclass(frozen=True, slots=True)
class HeldOutRule:
    """A rule for the held-out text.

    Attributes:
        share: held-out share of each long document.
        whole_below: short documents with a smaller hash are held out whole.
        cut_at: the hash of the one short document of which a block of `cut_bytes` is held out; None: none is cut.
    """

    share: float
    whole_below: float
    cut_at: float | None = None
    cut_bytes: int = 0

    @classmethod
    def of(cls, fraction: float) -> HeldOutRule:
        """Return the rule that holds out this share of all text."""
        return cls(fraction, fraction)


@dataclass
class ShortDocuments:
    """Statistics of short documents for `more_held_out`.

    Attributes:
        num_bytes: total bytes of the documents.
    """

    num_bytes: int = 0
    _largest_first: list[tuple[float, int]] = field(default_factory=list)

    def add(self, fraction: float, num_bytes: int) -> None:
        """Count a document; keep only those with the smallest hashes."""
        self.num_bytes += num_bytes
        keep = heapq.heappush if len(self._largest_first) < _KEPT_DOCUMENTS else heapq.heappushpop
        keep(self._largest_first, (-fraction, num_bytes))

    @property
    def smallest(self) -> list[tuple[float, int]]:
        """The (hash, bytes) of the documents with the smallest hashes, in order."""
        return sorted((-negative, num_bytes) for negative, num_bytes in self._largest_first)


def hash_fraction(content: bytes) -> float:
    """Return a number in [0, 1) that depends only on the content, uniform over all contents."""
    return fraction_of(blake3.blake3(b"held-out|" + content))


def fraction_of(hasher: blake3.blake3) -> float:
    """Return the `hash_fraction` from a hasher that began with ``held-out|`` and received the content in pieces."""
    return int.from_bytes(hasher.digest(8), "big") / 2**64


def edges_of(length: int, share: float) -> list[int]:
    """Return where a long document changes sides: the first part is trained on, the next one is held out, and so on."""
    num_sections = -(-length // SECTION_BYTES)
    edges: list[int] = []
    for number in range(num_sections):
        start, stop = number * length // num_sections, (number + 1) * length // num_sections
        edges += _block(start, stop, int((stop - start) * share))
    return edges


def _block(start: int, stop: int, length: int) -> list[int]:
    """Return (start, stop) of a held-out block; empty if its length is 0."""
    if not length:
        return []
    room = stop - start - length
    first = start + int(hash_fraction(f"block {start} {stop}".encode()) * (room + 1))
    return [first, first + length]


def edges_of_short(fraction: float, length: int, rule: HeldOutRule) -> list[int]:
    """Return where a short document with this hash changes sides, as in `edges_of`."""
    if fraction < rule.whole_below:
        return [0, length]
    return _block(0, length, min(rule.cut_bytes, length)) if fraction == rule.cut_at else []


def more_held_out(share: float, num_short_bytes: int, smallest: Iterable[tuple[float, int]]) -> HeldOutRule:
    """Choose held-out text when deciding document by document would leave too little on one side.

    Short documents are held out in the order of their hashes while they fit into the share; the next one is cut. So
    exactly this share is held out of any number of documents, and a document larger than the share is not held out
    whole.

    Args:
        share: share of all text, at most `MOST_HELD_OUT`.
        num_short_bytes: total bytes of all short documents.
        smallest: (hash, bytes) of the documents with the smallest hashes.
    """
    room, fraction = max(1, int(num_short_bytes * share)), 0.0
    for fraction, group in itertools.groupby(sorted(smallest), lambda document: document[0]):
        same = [num_bytes for _, num_bytes in group]  # two copies of a document are both cut
        if sum(same) > room:
            cut_bytes = room // len(same)
            return HeldOutRule(share, fraction, fraction if cut_bytes else None, cut_bytes)
        room -= sum(same)
    return HeldOutRule(share, math.nextafter(fraction, 1))


def cut_document(content: bytes, edges: Sequence[int]) -> Iterator[tuple[bytes, bool]]:
    """Yield (part, whether it is held out) of a UTF-8 document, cut at line ends near its edges if there are some.

    The parts join to the whole document; empty parts are left out.
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
    """Return how far after an edge a line end may be; a held-out block keeps at least three quarters of its length."""
    blocks = zip(edges[::2], edges[1::2], strict=True)
    return min((stop - start for start, stop in blocks), default=0) // 4


def bytes_to_edge(within_slack: bytes, following: bytes, is_end: bool) -> int:
    """Return how many of the bytes after an edge belong to the text before it.

    Args:
        within_slack: the bytes after the edge in which a line may end.
        following: at least the next four bytes.
        is_end: whether the document ends with `within_slack`.
    """
    line_end = within_slack.find(b"\n")
    if line_end >= 0:
        return line_end + 1
    if is_end:
        return len(within_slack)
    # A UTF-8 character has at most three continuation bytes after its first byte.
    return next((index for index, byte in enumerate(following[:3]) if byte & 0xC0 != 0x80), min(3, len(following)))
