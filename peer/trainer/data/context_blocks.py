"""Sequences of tokens to read blocks from: complete sequences, and sequences whose parts arrive over time.

A group (a shard) arrives as a whole, and is shuffled as a whole. A position is a group's first position plus an offset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dht.ground.errors import UsageFault
from peer.trainer.data.fetching_within_disk_limit import Stock
from peer.trainer.text.source_files import Tokens

GROUP_POSITIONS = 1 << 40
"""Number of positions reserved for each group where lengths are not known in advance: 2 TB of tokens."""


def identity_of(*parts: object) -> int:
    """Return a 32-bit identity of the parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


class OneGroup:
    """A complete sequence as one group: no part needs to be fetched, and no part is removed.

    Args:
        identity: see `GroupedStream`; None: an identity computed from the length.
    """

    num_groups = 1
    is_full = False
    failing: Collection[int] = ()

    def __init__(self, num_tokens: int, identity: int | None = None) -> None:
        self.num_tokens = num_tokens
        self.identity = identity_of(num_tokens) if identity is None else identity

    def group_range(self, group: int) -> tuple[int, int] | None:
        """Return (0, number of tokens)."""
        return 0, self.num_tokens

    def want(self, groups: Sequence[int]) -> None:
        """Do nothing: all tokens are present."""

    def let_go(self) -> None:
        """Do nothing: all tokens stay."""


class TokenStream(OneGroup):
    """One long sequence of tokens made of segments (files), read in any order."""

    def __init__(self, segments: Sequence[tuple[str, Tokens]], vocab_size: int, identity: int | None = None) -> None:
        self._segments = [(name, tokens) for name, tokens in segments if len(tokens)]
        self._ends = np.cumsum([len(tokens) for _, tokens in self._segments], dtype=np.int64)
        self._vocab_size = vocab_size
        super().__init__(sum(len(tokens) for _, tokens in self._segments), identity)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the segments, in order."""
        return tuple(name for name, _ in self._segments)

    def read(self, start: int, length: int) -> NDArray[np.int64]:
        """Read `length` tokens from `start`, across segments: int64 [length].

        Raises:
            UsageFault: a token is not below vocab_size; the message names the file.
            IndexError: the sequence does not contain all these tokens.
        """
        if not 0 <= start <= start + length <= self.num_tokens:
            raise IndexError(f"tokens {start}..{start + length} of a stream with {self.num_tokens} tokens")
        block = np.empty(length, np.int64)
        filled, index = 0, int(np.searchsorted(self._ends, start, side="right"))
        while filled < length:
            name, tokens = self._segments[index]
            inside = start + filled - (int(self._ends[index]) - len(tokens))
            part = tokens[inside : inside + length - filled]
            check_ids(name, int(part.max()), self._vocab_size)
            block[filled : filled + len(part)] = part
            filled += len(part)
            index += 1
        return block

    def batch(self, positions: NDArray[np.int64], context: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same as `GroupedStream.batch`.

        Raises:
            UsageFault: see `GroupedStream.batch`.
            LocalFault: a file has become shorter.
        """
        return _batch([self.read(int(position), context + 1) for position in positions])


class GroupedStream:
    """Groups that are opened when a caller first asks for them.

    Args:
        open_group: returns (name, tokens) of a group; None: the group is not present yet.
        identity: 32 bits that are the same for all peers with the same data.
        stock: fetches groups; None: no more groups arrive, and none are removed.
    """

    def __init__(
        self,
        num_groups: int,
        vocab_size: int,
        open_group: Callable[[int], tuple[str, Tokens] | None],
        identity: int,
        stock: Stock | None = None,
    ) -> None:
        self.num_groups = num_groups
        self._vocab_size = vocab_size
        self._open_group = open_group
        self.identity = identity
        self._stock = stock
        self._groups: dict[int, tuple[str, Tokens]] = {}
        # Groups found absent since the last `let_go`, because the block order asks for each group repeatedly.
        self._absent: set[int] = set()

    @property
    def is_full(self) -> bool:
        """Whether a group has to be removed before another group can arrive."""
        return self._stock is not None and self._stock.is_full

    @property
    def failing(self) -> Collection[int]:
        """Groups whose last fetch failed; other groups are requested first."""
        return () if self._stock is None else self._stock.failing

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the groups that are present."""
        return sum(length for _, length in filter(None, map(self.group_range, range(self.num_groups))))

    def group_range(self, group: int) -> tuple[int, int] | None:
        """Return (first position, number of tokens); None if the group is not present yet."""
        found = self._group(group)
        return None if found is None else (group * GROUP_POSITIONS, len(found[1]))

    def want(self, groups: Sequence[int]) -> None:
        """Fetch these groups in the background; they will be read next, in this order."""
        if self._stock is not None:
            self._stock.want(groups)

    def let_go(self) -> None:
        """Let the stock delete groups to make room. The caller has read all positions that it chose before this call.

        After this call, groups that were absent are looked up again.
        """
        for group in () if self._stock is None else self._stock.let_go():
            self._groups.pop(group, None)
        self._absent.clear()

    def batch(self, positions: NDArray[np.int64], context: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets (the inputs shifted by one token): two int64 [len(positions), context] on the CPU.

        Raises:
            UsageFault: a token is not below vocab_size, or a file has changed; the message names the file.
        """
        places = (divmod(position, GROUP_POSITIONS) for position in positions.tolist())
        return _batch([self.read(group, start, context + 1) for group, start in places])

    def read(self, group: int, start: int, length: int) -> NDArray[np.int64]:
        """Read `length` tokens of a group from `start`: int64 [length].

        Raises:
            UsageFault: a token is not below vocab_size; the message names the file.
            IndexError: the group is not present, or does not contain all these tokens.
        """
        found = self._group(group)
        if found is None or start + length > len(found[1]):
            num_tokens = 0 if found is None else len(found[1])
            raise IndexError(f"tokens {start}..{start + length} of group {group}, which has {num_tokens} tokens")
        block = found[1][start : start + length].astype(np.int64)
        check_ids(found[0], int(block.max()), self._vocab_size)
        return block

    def _group(self, group: int) -> tuple[str, Tokens] | None:
        if group in self._absent:
            return None
        if group not in self._groups:
            opened = self._open_group(group)
            if opened is None:
                self._absent.add(group)
                return None
            self._groups[group] = opened
        return self._groups[group]


TrainingStream = TokenStream | GroupedStream
"""The tokens to train on."""


def _batch(blocks: Sequence[NDArray[np.int64]]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.from_numpy(np.stack(blocks))
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def check_ids(name: str, largest: int, vocab_size: int) -> None:
    """Check the tokens of a file before they are used.

    Raises:
        UsageFault: the largest token is not below vocab_size; the message names the file.
    """
    if largest >= vocab_size:
        raise UsageFault(
            f"{name} contains token {largest}; expected tokens below vocab_size {vocab_size}; tokenize it with the "
            "run's tokenizer"
        )
