"""Messages between trainer and network process, and the slots that carry them; see `peer.mailbox.mailbox`."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np

from averaging.arrays import F32
from peer.mailbox.shared_memory import CELL_BYTES, Cells, array_view, fence, padded

NUM_SLOTS = 2
"""Two slots let the producer fill the next message while the consumer reads the last; more would only use memory."""

SLOT_CELLS = 16

FillValues = Callable[[F32], object]
"""Writes a message's values directly into a slot: float32 [num_values of the fragment]."""


class WorkKind(IntEnum):
    """The kinds of outbox messages."""

    INITIAL = 0
    """The fragment's parameters before the first inner step."""
    WORK = 1
    """An outer gradient: start minus end of the local work since the fragment's previous send."""


class MergeKind(IntEnum):
    """The trainer's actions on inbox messages; x: live parameters, ref: point from which work is measured."""

    ADD = 1
    """x += values; ref += values: unsent work is unchanged."""
    BLEND = 2
    """x = (x + values) / 2; ref = values (arXiv 2501.18512, equation 3)."""
    SET = 3
    """x = values; ref = values: unsent work of the fragment is discarded."""
    REBASE = 4
    """L = ref - x; ref = values; x = values - L: unsent work stays, also after a restart or with full slots.

    For SET and REBASE, the trainer subtracts the work that still lies in the outbox from `values`; the network process
    leaves that work there until then."""


@dataclass(frozen=True, slots=True)
class WorkMessage:
    """A message from the trainer. `values` is float32 [num_values], a view of the slot, valid until the slot is
    released.
    """

    slot: int
    sequence: int
    kind: WorkKind
    fragment: int
    num_steps: int
    num_tokens: int
    base_version: int
    inner_step: int
    values: F32


@dataclass(frozen=True, slots=True)
class MergeMessage:
    """A message to the trainer. `values` is float32 [num_values], a view of the slot, valid until the slot is
    released.
    """

    slot: int
    sequence: int
    kind: MergeKind
    fragment: int
    version: int
    values: F32


@dataclass(frozen=True, slots=True)
class Draft:
    """A slot reserved for a message in preparation. `values`: float32 [num_values], a view of the slot."""

    slot: int
    fragment: int
    values: F32


class _Slots:
    """Slots of one direction, with one producer and one consumer; either process may die and restart."""

    post: Callable[..., None]

    def __init__(self, buffer: mmap.mmap, meta_offset: int, values_offset: int, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes
        largest = max(sizes)
        self._cells = [
            Cells(buffer, meta_offset + slot * SLOT_CELLS * CELL_BYTES, SLOT_CELLS) for slot in range(NUM_SLOTS)
        ]
        self._values = [
            array_view(buffer, values_offset + slot * padded(4 * largest), largest) for slot in range(NUM_SLOTS)
        ]
        # Cell 0: sequence (producer). Cells 1..7: meta (producer). Cell 8: consumed (consumer).
        self._drafts: set[int] = set()

    def _pending(self, slot: int) -> bool:
        ints = self._cells[slot].ints
        return bool(ints[0] != ints[8])

    def _is_free(self, slot: int) -> bool:
        return slot not in self._drafts and not self._pending(slot)

    def num_free(self) -> int:
        """Return the number of free slots."""
        return sum(self._is_free(slot) for slot in range(NUM_SLOTS))

    def draft(self, fragment: int) -> Draft | None:
        """Reserve a slot for a message that is posted later; None if no slot is free. Called by the producer."""
        slot = next((slot for slot in range(NUM_SLOTS) if self._is_free(slot)), None)
        if slot is None:
            return None
        self._drafts.add(slot)
        return Draft(slot, fragment, self._values[slot][: self._sizes[fragment]])

    def drop(self, draft: Draft) -> None:
        """Free the slot again without posting. Called by the producer."""
        self._drafts.discard(draft.slot)

    def drop_all_but(self, drafts: Iterable[Draft]) -> None:
        """Free all reserved slots except those holding these drafts. Called by the producer."""
        self._drafts.intersection_update([draft.slot for draft in drafts])

    def release(self, slot: int) -> None:
        """Free the slot; its values must not be read any more. Called by the consumer."""
        self.releasing(slot)()

    def releasing(self, slot: int) -> Callable[[], object]:
        """Return a function that releases the slot."""
        fence()
        ints = self._cells[slot].ints
        return partial(ints.__setitem__, 8, ints[0])

    def try_post(self, kind: int, fragment: int, values: F32 | FillValues, **numbers: Any) -> bool:
        """Fill a free slot, or return False at once if there is none. Called by the producer.

        Args:
            values: float32 [num_values].
            numbers: see `post`.
        """
        draft = self.draft(fragment)
        if draft is None:
            return False
        try:
            if isinstance(values, np.ndarray):
                draft.values[:] = values
            else:
                values(draft.values)
        except BaseException:
            self.drop(draft)
            raise
        self.post(draft, kind, **numbers)
        return True

    def _ending(self, draft: Draft, meta: Sequence[int]) -> list[Callable[[], object]]:
        cells = self._cells[draft.slot]
        cells.ints[1 : 1 + len(meta)] = meta
        fence()
        sequence = 1 + max(int(other.ints[0]) for other in self._cells)
        return [partial(cells.ints.__setitem__, 0, sequence), partial(self._drafts.discard, draft.slot)]

    def _waiting(self) -> list[tuple[int, list[int], F32]]:
        waiting = []
        for slot in range(NUM_SLOTS):
            if self._pending(slot):
                fence()
                cells = self._cells[slot]
                meta = [int(value) for value in cells.ints[:7]]
                waiting.append((slot, meta, self._values[slot][: self._sizes[meta[2]]]))
        return sorted(waiting, key=lambda item: item[1][0])


class Outbox(_Slots):
    """Messages from the trainer to the network process."""

    def post(self, draft: Draft, kind: WorkKind, **facts: int) -> None:
        """Post the draft, whose values are complete, as a message. Called by the trainer. `facts`: see `posting`."""
        for change in self.posting(draft, kind, **facts):
            change()

    def posting(
        self,
        draft: Draft,
        kind: WorkKind,
        *,
        num_steps: int = 0,
        num_tokens: int = 0,
        base_version: int = 0,
        inner_step: int = 0,
    ) -> list[Callable[[], object]]:
        """Return `post` as changes, to be made in this order before anything else is posted."""
        meta = (kind, draft.fragment, num_steps, num_tokens, base_version, inner_step)
        return self._ending(draft, meta)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the newest message ever posted; 0 if there was none. Read by the trainer."""
        return max(int(cells.ints[0]) for cells in self._cells)

    def take(self) -> list[WorkMessage]:
        """Return all unreleased messages, oldest first; the same messages until they are released. Called by the
        network process.
        """
        return [
            WorkMessage(slot, meta[0], WorkKind(meta[1]), meta[2], meta[3], meta[4], meta[5], meta[6], values)
            for slot, meta, values in self._waiting()
        ]


class Inbox(_Slots):
    """Messages from the network process to the trainer."""

    def post(self, draft: Draft, kind: MergeKind, *, version: int) -> None:
        """Post the draft, whose values are complete, as a message; the trainer applies messages in order."""
        for change in self._ending(draft, (kind, draft.fragment, version)):
            change()

    def take(self) -> list[MergeMessage]:
        """Return all unreleased messages, oldest first. Called by the trainer."""
        return [
            MergeMessage(slot, meta[0], MergeKind(meta[1]), meta[2], meta[3], values)
            for slot, meta, values in self._waiting()
        ]
