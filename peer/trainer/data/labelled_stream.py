"""Examples with labels, as rows of one length in shards of numbers: a position is one example."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dht.ground.errors import UsageFault
from peer.trainer.data.context_blocks import GROUP_POSITIONS, GroupedStream, identity_of
from peer.trainer.data.fetching_within_disk_limit import Stock
from peer.trainer.examples.label_rules import HEAD_VALUES, ExampleRules
from peer.trainer.text.source_files import Tokens

NO_TOKEN = -1
"""Behind the end of a text that is shorter than others of its batch."""


class LabelledStream(GroupedStream):
    """A `GroupedStream` of examples: each is one position, and counts as a token.

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
        stock: Stock | None = None,
    ) -> None:
        super().__init__(num_groups, max(limit, len(rules.labels), rules.num_values + 1), open_group, identity, stock)
        self._rules = rules
        self._limit = limit

    def group_range(self, group: int) -> tuple[int, int] | None:
        """(first position, number of examples); see `GroupedStream.group_range`."""
        found = super().group_range(group)
        return None if found is None else (found[0], found[1] // self._rules.row_values)

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
            found.append(self.read(group, index * size, size))
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
