"""Which text only measures the loss: chosen by the hash of the text itself. Pure.

So the choice is the same for everybody, whatever other files somebody has, and a document that comes twice is on one
side both times.
"""

from __future__ import annotations

import blake3

PIECE_TOKENS = 1 << 14
"""Long files are divided into pieces of so many tokens, each chosen for itself. At 5 %, 1 MB of bytes has 61 of them.
The share that is held out differs from the one asked for by a few percent of the whole at most.
"""


def hash_fraction(content: bytes) -> float:
    """A number in [0, 1) that only the content decides, even over all contents."""
    return int.from_bytes(blake3.blake3(b"held-out|" + content).digest(8), "big") / 2**64
