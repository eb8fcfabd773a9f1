"""The trainer's side of a checkpoint: live parameters, reference points, optimizer, random states, counts.

When the network side asks for a moment, the trainer copies all of it after an inner step and goes on; a thread brings
the copies to the disk. The copies take at most a quarter of the machine's memory: of a larger state the rest waits for
the disk, and the trainer with it. Nothing is pickled: tensors go to a safetensors file, the rest to JSON.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from averaging.finite import all_finite
from peer.checkpoint import TRAINER_FACTS_NAME, TRAINER_TENSORS_NAME, checkpoint_path, draft_path
from peer.checkpoint_files import (
    OpenFile,
    TensorFile,
    TensorSpec,
    can_hold,
    open_new,
    open_tensors,
    read_json,
    sync_file,
    write_json,
    write_tensors,
)
from peer.trainer_link import TrainerLink

FALLBACK_COPY_BYTES = 1 << 30
"""Where the machine's memory is not known: the whole state of a model of 60 million parameters."""

log = logging.getLogger(__name__)


class KeptCounts(Protocol):
    """Port: what a training loop wants back after a restart besides its tensors."""

    def kept_counts(self) -> dict[str, int]: ...

    def take_counts(self, counts: Mapping[str, int]) -> None: ...


class TrainerKeeper:
    """Writes and restores the trainer's side.

    Args:
        folder: of the checkpoints; the network side makes the drafts in it.
        reads: how often data was read, earlier sessions included.
        loop: what else to keep.
        copy_bytes: copies that may wait for the disk; default: a quarter of the machine's memory.
        open_file: makes files.
    """

    def __init__(
        self,
        folder: Path,
        link: TrainerLink,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        reads: Callable[[], int],
        loop: KeptCounts | None = None,
        copy_bytes: int | None = None,
        open_file: OpenFile = open_new,
    ) -> None:
        self._folder = folder
        self._link = link
        self._module = module
        self._optimizer = optimizer
        self._reads = reads
        self._loop = loop
        self._copy_bytes = copy_bytes or _quarter_of_memory()
        self._open_file = open_file
        self._writer: threading.Thread | None = None
        self._has_complained = False

    def after_step(self) -> None:
        """Take a moment if one is asked for: copy everything, and let a thread write it."""
        if not self._is_asked():
            return
        number = self._link.mailbox.network.wanted_moment
        content = self._begin()
        if content is None:
            return
        facts, tensors = content
        specs = _specs_of(tensors)
        copies = _Copies(self._copy_bytes)
        self._writer = threading.Thread(
            target=self._write, args=(number, facts, specs, copies), name="checkpoint", daemon=True
        )
        self._writer.start()
        try:
            for spec in specs:
                copies.put(tensors[spec.name].detach().to("cpu", copy=True))
        finally:
            copies.end()
        self._link.mailbox.trainer.moment = number
        self._link.note_pause()

    def idle(self) -> None:
        """The same for a loop that has ended: nothing changes any more, so it is written from where it is."""
        if not self._is_asked():
            return
        number = self._link.mailbox.network.wanted_moment
        content = self._begin()
        if content is None:
            return
        facts, tensors = content
        specs = _specs_of(tensors)
        self._link.mailbox.trainer.moment = number
        self._write(number, facts, specs, (tensors[spec.name].detach().cpu() for spec in specs))

    def _is_asked(self) -> bool:
        mailbox = self._link.mailbox
        is_writing = self._writer is not None and self._writer.is_alive()
        return mailbox.network.wanted_moment > mailbox.trainer.moment and not is_writing

    def _begin(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        counters = self._link.mailbox.trainer
        counters.moment_written = 0
        counters.moment_sequence = self._link.mailbox.outbox.last_sequence
        if not all(all_finite(live) for live in self._link.parameters.values()):
            counters.moment_written = -errno.EDOM
            counters.moment = self._link.mailbox.network.wanted_moment
            return None
        return self._content(self._link.mailbox.network.wanted_moment)

    def _content(self, number: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors: dict[str, Tensor] = {}
        for name, live in self._link.parameters.items():
            tensors[f"live.{name}"] = live
            tensors[f"reference.{name}"] = self._link.references[name]
        tensors |= {f"buffer.{name}": buffer for name, buffer in self._module.named_buffers() if can_hold(buffer)}
        counters = self._link.mailbox.trainer
        facts = {
            "number": number,
            "inner_steps": counters.inner_steps,
            "tokens": counters.tokens,
            "reads": self._reads(),
            "accounts": self._link.accounts(),
            "loop": self._loop.kept_counts() if self._loop is not None else {},
            "optimizer": self._optimizer_state(tensors),
            "random": _split(_random_states(self._device()), "random", tensors),
        }
        return facts, tensors

    def _optimizer_state(self, tensors: dict[str, Tensor]) -> dict[str, Any] | None:
        found: dict[str, Tensor] = {}
        try:
            state = _split(self._optimizer.state_dict(), "optimizer", found)
            for name, tensor in found.items():
                if not can_hold(tensor):
                    raise TypeError(f"{name} is a {tensor.layout} tensor of {tensor.dtype}")
        except TypeError as error:
            if not self._has_complained:
                log.warning("checkpoints are without the optimizer's state, which begins anew then: %s", error)
            self._has_complained = True
            return None
        tensors.update(found)
        return {"kind": type(self._optimizer).__name__, "state": state}

    def _device(self) -> torch.device:
        return next((live.device for live in self._link.parameters.values()), torch.device("cpu"))

    def _write(self, number: int, facts: dict[str, Any], specs: list[TensorSpec], tensors: Iterable[Tensor]) -> None:
        path, outcome = draft_path(self._folder, number), -errno.EIO
        try:
            written = write_tensors(path / TRAINER_TENSORS_NAME, specs, tensors, self._open_file)
            sync_file(path / TRAINER_TENSORS_NAME)
            file = {"num_bytes": written.num_bytes, "digest": written.digest}
            write_json(path / TRAINER_FACTS_NAME, {**facts, "file": file}, self._open_file)
            sync_file(path / TRAINER_FACTS_NAME)
            outcome = number
        except OSError as error:
            log.debug("the trainer's side of moment %d was not written: %s", number, error)
            outcome = -(error.errno or errno.EIO)
        finally:
            if isinstance(tensors, _Copies):
                tensors.give_up()
            self._link.mailbox.trainer.moment_written = outcome

    # ----------------------------------------------------------------------------------------------------- coming back

    def restore(self, number: int) -> bool:
        """Go on from the checkpoint of this number; False, with a warning, when that cannot be.

        Nothing is changed unless names, shapes and types of all tensors fit.
        """
        path = checkpoint_path(self._folder, number)
        try:
            facts = read_json(path / TRAINER_FACTS_NAME)
            with open_tensors(path / TRAINER_TENSORS_NAME) as file:
                self._check(facts, file)
                self._take(facts, file)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("the trainer's side of %s was not used, its optimizer begins anew: %s", path, error)
            return False
        return True

    def _check(self, facts: Mapping[str, Any], file: TensorFile) -> None:
        for name, live in self._link.parameters.items():
            file.check(TensorSpec(f"live.{name}", live.dtype, tuple(live.shape)))
            file.check(TensorSpec(f"reference.{name}", torch.float32, (live.numel(),)))
        num_fragments = len(self._link.layout.fragments)
        if len(facts["accounts"]) != num_fragments:
            raise ValueError(f"it has {len(facts['accounts'])} fragments; expected {num_fragments}")

    @torch.no_grad()
    def _take(self, facts: Mapping[str, Any], file: TensorFile) -> None:
        self._take_optimizer(facts["optimizer"], file)
        for name, live in self._link.parameters.items():
            live.copy_(file.get(f"live.{name}"))
            self._link.references[name].copy_(file.get(f"reference.{name}"))
        for name, buffer in self._module.named_buffers():
            if f"buffer.{name}" in file.names:
                buffer.copy_(file.get(f"buffer.{name}"))
        self._link.resume(facts["accounts"])
        if self._loop is not None:
            self._loop.take_counts(facts["loop"])
        _set_random_states(_joined(facts["random"], file, keep=True), self._device())

    def _take_optimizer(self, saved: Mapping[str, Any] | None, file: TensorFile) -> None:
        kind = type(self._optimizer).__name__
        if saved is None or saved["kind"] != kind:
            log.warning("the checkpoint has no state of an optimizer %s; it begins anew", kind)
            return
        # Tensors of the file itself must not stay in an optimizer; for another device they are copied anyway.
        state = _joined(saved["state"], file, keep=self._device().type == "cpu")
        try:
            self._optimizer.load_state_dict(state)
        except (ValueError, KeyError, RuntimeError) as error:
            log.warning("the optimizer refuses its saved state and begins anew: %s", error)


class _Copies:
    """Copies on their way to the disk, at most `num_bytes` of them, or one."""

    def __init__(self, num_bytes: int) -> None:
        self._room = num_bytes
        self._waiting: deque[Tensor] = deque()
        self._held_bytes = 0
        self._has_ended = False
        self._is_given_up = False
        self._changed = threading.Condition()

    def put(self, tensor: Tensor) -> None:
        """Hand over a copy; waits while too many are on their way."""
        with self._changed:
            while self._held_bytes and self._held_bytes + tensor.nbytes > self._room and not self._is_given_up:
                self._changed.wait()
            if not self._is_given_up:
                self._waiting.append(tensor)
                self._held_bytes += tensor.nbytes
                self._changed.notify_all()

    def end(self) -> None:
        """No more will come."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def give_up(self) -> None:
        """Nobody takes any more."""
        with self._changed:
            self._is_given_up = True
            self._waiting.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            with self._changed:
                while not self._waiting and not self._has_ended:
                    self._changed.wait()
                if not self._waiting:
                    return
                tensor = self._waiting.popleft()
            yield tensor
            with self._changed:
                self._held_bytes -= tensor.nbytes
                self._changed.notify_all()


def _specs_of(tensors: Mapping[str, Tensor]) -> list[TensorSpec]:
    specs = [TensorSpec(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
    return sorted(specs, key=lambda spec: -spec.dtype.itemsize)


def _split(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON; its tensors go to `tensors` under names that begin with `place`."""
    if isinstance(value, Tensor):
        tensors[place] = value
        return {"tensor": place}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list | tuple):
        items = [_split(item, f"{place}.{index}", tensors) for index, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(value, Mapping) and all(type(key) in (int, str) for key in value):
        return {"mapping": [[key, _split(item, f"{place}.{key}", tensors)] for key, item in value.items()]}
    raise TypeError(f"{place} is a {type(value).__name__}; expected tensors, numbers, text, lists and mappings")


def _joined(value: Any, file: TensorFile, *, keep: bool) -> Any:
    """The reverse of `_split`; `keep`: the tensors outlive the file."""
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "tensor":
            tensor = file.get(inner)
            return tensor.clone() if keep else tensor
        case "mapping":
            return {key: _joined(item, file, keep=keep) for key, item in inner}
        case "list" | "tuple":
            items = [_joined(item, file, keep=keep) for item in inner]
            return tuple(items) if kind == "tuple" else items
    raise ValueError(f"it holds a {kind!r:.20}; expected a tensor, mapping, list or tuple")


def _random_states(device: torch.device) -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys, np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    random.setstate(states["python"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _quarter_of_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    except (AttributeError, ValueError, OSError):
        return FALLBACK_COPY_BYTES
