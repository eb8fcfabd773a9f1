"""The trainer's part of a checkpoint: live parameters, reference points, optimizer, random states, counts.

When the network process requests a checkpoint, the trainer copies this state after an inner step and continues. In a
user's own loop a scheduler or scaler steps after the optimizers. So there the checkpoint waits until the loop reads its
next data or steps again; the state that reading and a forward pass change is copied before.

A thread writes the copies to the disk. They use at most a quarter of the machine's memory; for a larger state the
trainer waits for the disk. Nothing is pickled: tensors go to a safetensors file, the rest to JSON.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dht.ground.regular_files import sync
from peer.checkpoint.checked_files import OpenFile, open_new, write_json
from peer.checkpoint.checkpoint import TRAINER_FACTS_NAME, TRAINER_TENSORS_NAME, draft_path
from peer.checkpoint.tensor_files import TensorSpec
from peer.data_division.block_order import BlockOrder
from peer.memory.least_memory import all_memory_bytes
from peer.trainer.devices.portion import Part
from peer.trainer.devices.rank_orders import OrderKind
from peer.trainer.loop.absolute_state import AbsoluteState
from peer.trainer.loop.checkpoint_portion import PortionKeeper, Stateful, random_states, specs_of
from peer.trainer.loop.checkpoint_values import Held, split, write_tensors
from peer.trainer.loop.mailbox_link import TrainerLink

FALLBACK_COPY_BYTES = 1 << 30
"""Limit on copies if the machine's memory is unknown: the complete state of a model of 60 million parameters."""

log = logging.getLogger(__name__)


class TrainerKeeper:
    """Writes and restores the trainer's part of checkpoints.

    Args:
        folder: folder of the checkpoints, in which the network process makes the drafts.
        optimizer_age: returns the optimizers' age in inner steps.
        order: order of the data, which resumes where it was.
        open_file: creates files.
        state: see `PortionKeeper`.
        absolute: copies of the parameters in the optimizers.
    """

    def __init__(
        self,
        folder: Path,
        link: TrainerLink,
        module: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        optimizer_age: Callable[[], int],
        order: BlockOrder,
        open_file: OpenFile = open_new,
        state: Mapping[str, Stateful] | None = None,
        absolute: AbsoluteState | None = None,
    ) -> None:
        self._folder = folder
        self._absolute = absolute or AbsoluteState((), ())
        self._link = link
        self._kept = PortionKeeper(folder, link.portion, module, optimizers, link.ranks, state)
        self._optimizer_age = optimizer_age
        self._order = order
        all_bytes = all_memory_bytes()
        self._copy_bytes = FALLBACK_COPY_BYTES if all_bytes is None else all_bytes // 4
        """Limit on the bytes of copies that wait for the disk."""
        self._open_file = open_file
        self._writer: threading.Thread | None = None
        self._waiting: _Passing | None = None

    def after_step(self) -> None:
        """Copy the state if a checkpoint is requested, or postpone it until `take_waiting`. Also called when no step
        follows.
        """
        is_writing = self._writer is not None and self._writer.is_alive()
        if self._link.mailbox.network.wanted_moment <= self._link.mailbox.trainer.moment or is_writing:
            return
        if not self._kept.has_followers:
            self._take(self._passing())
        elif self._waiting is None:
            self._waiting = self._passing().copied()

    def take_waiting(self) -> None:
        """Copy the state for a waiting checkpoint, now that schedulers have stepped after the optimizers."""
        if self._waiting is not None:
            passing, self._waiting = self._waiting, None
            self._take(passing)

    def _take(self, passing: _Passing) -> None:
        """Copy all state, and let a thread write it."""
        mailbox = self._link.mailbox
        number, counters = mailbox.network.wanted_moment, mailbox.trainer
        counters.moment_written = 0
        self._link.settle()
        counters.moment_sequence = mailbox.outbox.last_sequence
        if self._kept.is_sharded:
            self._link.ranks.order(OrderKind.KEEP)
        if not self._kept.is_finite():
            counters.moment_written = -errno.EDOM
            counters.moment = number
            return
        facts, tensors = self._content(number, passing)
        specs = specs_of(tensors)
        copies = _Copies(self._copy_bytes)
        self._writer = threading.Thread(
            target=self._write, args=(number, facts, specs, copies), name="checkpoint", daemon=True
        )
        self._writer.start()
        try:
            for spec in specs:
                copies.put(self._kept.copy_of(tensors[spec.name]))
        except BaseException:
            copies.break_off()
            raise
        copies.end()
        counters.moment = number
        self._link.note_pause()

    def _passing(self) -> _Passing:
        tensors, readers = self._kept.passing()
        random = split(random_states(self._link.portion.device), "random", tensors)
        return _Passing(tensors, {"order": self._order.state(), "random": random}, readers)

    def _content(self, number: int, passing: _Passing) -> tuple[dict[str, Any], dict[str, Held]]:
        tensors, kept = self._kept.content()
        counters = self._link.mailbox.trainer
        optimizer_age = self._optimizer_age()
        facts = {
            "number": number,
            "inner_steps": counters.inner_steps,
            "tokens": counters.tokens,
            "accounts": self._link.accounts(),
            "loop": {"num_steps": optimizer_age},
            "frozen": self._kept.frozen,
            "absolute": self._absolute.names,
            **kept,
            **passing.facts,
        }
        facts["state"] |= passing.readers
        return facts, {**tensors, **passing.tensors}

    def _write(self, number: int, facts: dict[str, Any], specs: list[TensorSpec], copies: _Copies) -> None:
        path, outcome = draft_path(self._folder, number), -errno.EIO
        try:
            for name in (TRAINER_TENSORS_NAME, TRAINER_FACTS_NAME):  # left by an interrupted checkpoint
                (path / name).unlink(missing_ok=True)
            written = write_tensors(path / TRAINER_TENSORS_NAME, specs, copies, self._open_file)
            sync(path / TRAINER_TENSORS_NAME)
            write_json(path / TRAINER_FACTS_NAME, {**facts, "file": written.model_dump()}, self._open_file)
            sync(path / TRAINER_FACTS_NAME)
            outcome = number
        except OSError as error:
            log.debug("the trainer's side of moment %d was not written: %s", number, error)
            outcome = -(error.errno or errno.EIO)
        finally:
            copies.give_up()
            self._link.mailbox.trainer.moment_written = outcome

    # ----------------------------------------------------------------------------------------------------- coming back

    def restore(self, number: int) -> int | None:
        """Resume from the checkpoint with this number and return the optimizers' age; None, with a warning, if
        impossible.

        No tensor changes unless names, shapes and types of all tensors fit.
        """
        self._link.ranks.order(OrderKind.RESTORE, number)
        facts = self._kept.restore(number, len(self._link.layout.fragments))
        if facts is None:
            return None
        self._link.resume(facts["accounts"])
        self._order.restore(facts.get("order", {}))
        self._absolute.resume(facts.get("absolute"))
        age: int = facts["loop"]["num_steps"]
        return age


@dataclass(frozen=True, slots=True)
class _Passing:
    """The state that the next read and the next forward pass change.

    Attributes:
        facts: the trainer's facts.
        readers: state of data loaders, by name in `state`.
    """

    tensors: dict[str, Held]
    facts: dict[str, Any]
    readers: dict[str, Any]

    def copied(self) -> _Passing:
        """Return a copy that stays unchanged."""
        tensors = {
            name: held if isinstance(held, Part) else held.detach().clone() for name, held in self.tensors.items()
        }
        return _Passing(tensors, self.facts, self.readers)


class _Copies:
    """A queue of copies for the disk, limited to `num_bytes` or to one copy."""

    def __init__(self, num_bytes: int) -> None:
        self._room = num_bytes
        self._waiting: deque[Tensor] = deque()
        self._held_bytes = 0
        self._has_ended = self._is_broken_off = False
        self._is_given_up = False
        self._changed = threading.Condition()

    def put(self, tensor: Tensor) -> None:
        """Add a copy; wait while the queue is full."""
        with self._changed:
            while self._held_bytes and self._held_bytes + tensor.nbytes > self._room and not self._is_given_up:
                self._changed.wait()
            if not self._is_given_up:
                self._waiting.append(tensor)
                self._held_bytes += tensor.nbytes
                self._changed.notify_all()

    def end(self) -> None:
        """Mark the queue as complete."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def break_off(self) -> None:
        """Stop early: iterating raises an OSError."""
        with self._changed:
            self._is_broken_off = True
            self._changed.notify_all()

    def give_up(self) -> None:
        """Stop reading, and drop all waiting copies."""
        with self._changed:
            self._is_given_up = True
            self._waiting.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            with self._changed:
                while not self._waiting and not self._has_ended and not self._is_broken_off:
                    self._changed.wait()
                if self._is_broken_off:
                    raise InterruptedError(errno.EINTR, "the moment was broken off")
                if not self._waiting:
                    return
                tensor = self._waiting.popleft()
            yield tensor
            with self._changed:
                self._held_bytes -= tensor.nbytes
                self._changed.notify_all()
