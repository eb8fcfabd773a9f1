"""Examples with labels, as rows of one length in shards of numbers: a position is one example."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dht.errors import UsageFault
from peer.trainer.data.streams import GROUP_POSITIONS, GroupedStream, Wants, identity_of
from peer.trainer.examples.rules import HEAD_VALUES, ExampleRules
from peer.trainer.text.files import Tokens

NO_TOKEN = -1
"""Behind the end of a text that is shorter than others of its batch."""


class LabelledStream:
    """Groups of examples that are opened when they are first asked for; see `GroupedStream`.

    Args:
        limit: values of an example are below it: the vocabulary, or the shades of a pixel.
    """

    def __init__(
        self,
        num_groups: int,
        rules: ExampleRules,
        limit: int,
        open_group: Callable[[int], tuple[str, Tokens] | None],
        identity: int,
        stock: Wants | None = None,
    ) -> None:
        self._rules = rules
        self._values = GroupedStream(
            num_groups, max(limit, len(rules.labels), rules.num_values + 1), open_group, identity, stock
        )
        self._limit = limit
        self.identity = identity

    @property
    def num_groups(self) -> int:
        """Those that are not here yet, too."""
        return self._values.num_groups

    @property
    def is_full(self) -> bool:
        """See `Groups.is_full`."""
        return self._values.is_full

    @property
    def failing(self) -> Collection[int]:
        """See `Groups.failing`."""
        return self._values.failing

    @property
    def num_tokens(self) -> int:
        """Examples of the groups that are here: one counts as a token."""
        return sum(length for _, length in filter(None, map(self.group_range, range(self.num_groups))))

    def group_range(self, group: int) -> tuple[int, int] | None:
        """(first position, number of examples); see `Groups.group_range`."""
        found = self._values.group_range(group)
        return None if found is None else (found[0], found[1] // self._rules.row_values)

    def want(self, groups: Sequence[int]) -> None:
        """See `Groups.want`."""
        self._values.want(groups)

    def let_go(self) -> None:
        """See `Groups.let_go`."""
        self._values.let_go()

    @classmethod
    def of_segments(cls, segments: Sequence[tuple[str, Tokens]], rules: ExampleRules, limit: int) -> LabelledStream:
        """Examples that are all here, each segment a group."""
        found = list(segments)
        return cls(len(found), rules, limit, lambda group: found[group], identity_of(len(found)))

    def batch(self, positions: NDArray[np.int64], context: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Examples and their classes: int64 [n, values] and int64 [n], on the CPU.

        Texts are as long as the longest of the batch, with `NO_TOKEN` behind their ends; `context` is not looked at.

        Raises:
            UsageFault: a class, token or length that cannot be; names the file.
        """
        size = self._rules.row_values
        found = []
        for position in positions.tolist():
            group, index = divmod(position, GROUP_POSITIONS)
            found.append(self._values.read(group, index * size, size))
        rows = np.stack(found)
        labels, lengths, values = rows[:, 0], rows[:, 1], rows[:, HEAD_VALUES:]
        if labels.max() >= len(self._rules.labels) or values.max(initial=0) >= self._limit:
            raise UsageFault(
                f"the data has class {labels.max()} and value {values.max(initial=0)}; expected classes below "
                f"{len(self._rules.labels)} and values below {self._limit}; prepare it for this run"
            )
        if self._rules.picture is None:
            lengths = np.minimum(lengths, self._rules.num_values)
            longest = max(1, int(lengths.max()))
            values = np.where(np.arange(longest) < lengths[:, None], values[:, :longest], NO_TOKEN)
        return torch.from_numpy(np.ascontiguousarray(values)), torch.from_numpy(np.ascontiguousarray(labels))
