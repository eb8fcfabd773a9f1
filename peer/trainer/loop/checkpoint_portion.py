"""The part of a checkpoint in one process of a peer: its parameters, references, buffers and optimizer.

In a single process these are all of the trainer's tensors. For a sharded model each rank sends its rows to rank 0,
tensor by tensor, so the file does not depend on the number of ranks. When a rank resumes, it reads its rows from the
file.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dht.ground.errors import LocalFault, UsageFault
from peer.checkpoint.checked_files import read_json
from peer.checkpoint.checkpoint import TRAINER_FACTS_NAME, TRAINER_TENSORS_NAME, checkpoint_path
from peer.checkpoint.tensor_files import ITEM_BYTES, TensorFile, TensorSpec
from peer.config.model_shapes import bare_name
from peer.trainer.devices.portion import Part, Portion, is_sharded, part_of
from peer.trainer.devices.rank_orders import ALONE, Ranks
from peer.trainer.loop.checkpoint_values import Held, can_hold, joined, open_tensors, spec_of, split

log = logging.getLogger(__name__)

NUM_SAMPLED = 4096
"""Number of compared values per frozen parameter: takes milliseconds for billions, and detects a different seed."""


class Stateful(Protocol):
    """An object that a loop saves besides module and optimizers: a scheduler, a data loader, a scaler, an average."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class PortionKeeper:
    """Collects and restores one process's tensors.

    Args:
        folder: the folder of the checkpoints.
        optimizers: all optimizers of the module.
        ranks: the processes of this peer.
        state: additional objects to save, by name; only for a peer with one process.
    """

    def __init__(
        self,
        folder: Path,
        portion: Portion,
        module: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        ranks: Ranks = ALONE,
        state: Mapping[str, Stateful] | None = None,
    ) -> None:
        self._folder = folder
        self._portion = portion
        self._module = module
        self._optimizers = tuple(optimizers)
        self._ranks = ranks
        self._state = dict(state or {})
        self._complaints: set[str] = set()
        self.frozen = frozen_digests(module)

    @property
    def is_sharded(self) -> bool:
        """Whether other ranks hold the remaining rows."""
        return self._ranks.is_sharded

    def is_finite(self) -> bool:
        """Return whether all live parameters are finite on all ranks; the ranks of a sharded model call this method
        together.
        """
        is_finite = all(all_finite(part.local) for part in self._portion.live.values())
        return self._ranks.agree(is_finite) if self.is_sharded else is_finite

    @property
    def has_followers(self) -> bool:
        """Whether an object in `state` may step after the optimizers: a scheduler, a scaler, an average."""
        return any(not _reads(stateful) for stateful in self._state.values())

    def passing(self) -> tuple[dict[str, Held], dict[str, Any]]:
        """Return (tensors by name, state by name) that reading and a forward pass change: buffers and loaders."""
        tensors: dict[str, Held] = {f"buffer.{name}": one for name, one in self._buffers() if can_hold(one)}
        return tensors, self._other_state(tensors, _reads)

    def content(self) -> tuple[dict[str, Held], dict[str, Any]]:
        """Return (tensors by name, JSON facts that refer to them) of optimizers and other objects, except those of
        `passing`.

        State that cannot be saved is left out, with a warning.
        """
        tensors: dict[str, Held] = {}
        for kind, parts in self._kinds().items():
            tensors |= {f"{kind}.{name}": _held(part) for name, part in parts.items()}
        optimizers = [self._optimizer_state(place, tensors) for place in range(len(self._optimizers))]
        state = self._other_state(tensors, lambda stateful: not _reads(stateful))
        return tensors, {"optimizer": optimizers[0] if len(optimizers) == 1 else optimizers, "state": state}

    def copy_of(self, held: Held) -> Tensor:
        """Copy the whole tensor to the CPU, to save it; for a part all ranks call this method, and rank 0 gets the
        tensor.
        """
        return self._ranks.whole(held) if isinstance(held, Part) else held.detach().to("cpu", copy=True)

    def send_parts(self) -> None:
        """Send the rows of this rank for a checkpoint to rank 0."""
        if not self.is_finite():
            return
        tensors, _ = self.content()
        for spec in specs_of(tensors):
            held = tensors[spec.name]
            if isinstance(held, Part):
                self.copy_of(held)

    def restore(self, number: int, num_fragments: int) -> Mapping[str, Any] | None:
        """Restore the checkpoint with this number and return its facts; None, with a warning, if it is unusable.

        All ranks call this method; no tensor changes unless names, shapes and types of all tensors fit on each rank.

        Raises:
            LocalFault: a frozen parameter has different values than in the session of the checkpoint.
        """
        path = checkpoint_path(self._folder, number)
        facts, complaint = None, ""
        try:
            facts = read_json(path / TRAINER_FACTS_NAME)
            check_frozen(self.frozen, facts["frozen"], str(path))
            self._check(facts, open_tensors(path / TRAINER_TENSORS_NAME), num_fragments)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            complaint = str(error)
        if not self._ranks.agree(not complaint):
            complaint = complaint or "another rank cannot read it"
        if not complaint and facts is not None:
            try:
                self._take(facts, open_tensors(path / TRAINER_TENSORS_NAME))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                complaint = str(error)
        if complaint:
            log.warning("the trainer's side of %s was not used, its optimizer begins anew: %s", path, complaint)
            return None
        return facts

    def _kinds(self) -> dict[str, Mapping[str, Part]]:
        """Return the tensors that belong to each parameter, by the prefix of their names."""
        return {"live": self._portion.live, "reference": self._portion.references, "error": self._portion.errors}

    def _optimizer_state(self, place: int, tensors: dict[str, Held]) -> dict[str, Any] | None:
        optimizer = self._optimizers[place]
        name = "optimizer" if len(self._optimizers) == 1 else f"optimizer.{place}"
        state = self._state_of(optimizer, "the optimizer's state", name, tensors)
        if state is None:
            return None
        return {"kind": type(optimizer).__name__, "state": state}

    def _other_state(self, tensors: dict[str, Held], is_wanted: Callable[[Stateful], bool]) -> dict[str, Any]:
        found = {
            name: self._state_of(stateful, f"the state of {name!r}", f"state.{name}", tensors)
            for name, stateful in self._state.items()
            if is_wanted(stateful)
        }
        return {name: state for name, state in found.items() if state is not None}

    def _state_of(self, stateful: Stateful, what: str, place: str, tensors: dict[str, Held]) -> Any:
        """Convert the state to JSON and add its tensors to `tensors`; None, with a warning, if impossible."""
        found: dict[str, Held] = {}
        try:
            state = split(stateful.state_dict(), place, found)
        except TypeError as error:
            problem = f"checkpoints do not contain {what}, which restarts with each session: {error}"
            if problem not in self._complaints:  # only once, because a checkpoint is written every few minutes
                log.warning("%s", problem)
            self._complaints.add(problem)
            return None
        tensors.update(found)
        return state

    def _check(self, facts: Mapping[str, Any], file: TensorFile[Tensor], num_fragments: int) -> None:
        for kind, parts in self._kinds().items():
            for name, part in parts.items():
                file.check(spec_of(f"{kind}.{name}", part.local.dtype, part.shape))
        if len(facts["accounts"]) != num_fragments:
            raise ValueError(f"it has {len(facts['accounts'])} fragments; expected {num_fragments}")

    @torch.no_grad()
    def _take(self, facts: Mapping[str, Any], file: TensorFile[Tensor]) -> None:
        saved = facts["optimizer"] if isinstance(facts["optimizer"], list) else [facts["optimizer"]]
        for place in range(len(self._optimizers)):
            self._take_optimizer(place, saved[place] if place < len(saved) else None, file)
        for kind, parts in self._kinds().items():
            for name, part in parts.items():
                part.local.copy_(file.get(f"{kind}.{name}").view(-1)[part.start : part.end])
        for name, buffer in self._buffers():
            if f"buffer.{name}" in file.names:
                buffer.copy_(file.get(f"buffer.{name}"))
        self._take_state(facts.get("state"), file)
        _set_random_states(joined(facts["random"], file, keep=True), self._portion.device)

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        return ((bare_name(name, self._module), buffer) for name, buffer in self._module.named_buffers())

    def _take_optimizer(self, place: int, saved: Mapping[str, Any] | None, file: TensorFile[Tensor]) -> None:
        optimizer = self._optimizers[place]
        kind = type(optimizer).__name__
        if saved is None or saved["kind"] != kind:
            log.warning("the checkpoint has no state of an optimizer %s, which starts without it", kind)
            return
        # Tensors of the file itself must not stay in an optimizer; for a different device they are copied anyway.
        state = joined(saved["state"], file, keep=self._portion.device.type == "cpu")
        if self.is_sharded:
            self._cut_rows(optimizer, state)
        try:
            optimizer.load_state_dict(state)
        except (ValueError, KeyError, RuntimeError) as error:
            log.warning("the optimizer rejects its saved state and starts without it: %s", error)

    def _take_state(self, saved: Any, file: TensorFile[Tensor]) -> None:
        kept = saved if isinstance(saved, dict) else {}
        for name, stateful in self._state.items():
            if name not in kept:
                log.warning("the checkpoint has no state of %r, which keeps its current state", name)
                continue
            try:
                stateful.load_state_dict(joined(kept[name], file, keep=True))
            except Exception as error:  # noqa: BLE001  user code; training continues from the same anchors
                log.warning("%r rejects its saved state (%s) and keeps its current state", name, error)

    def _cut_rows(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Reduce complete tensors of an optimizer's state to the rows of this rank's parameters."""
        from torch.distributed.tensor import DTensor

        parameters: list[Any] = [one for group in optimizer.param_groups for one in group["params"]]
        for index, values in state["state"].items():
            parameter = parameters[index]
            part = part_of(parameter)
            for name, value in values.items():
                if isinstance(value, Tensor) and tuple(value.shape) == part.shape and is_sharded(parameter):
                    rows = value.view(-1)[part.start : part.end].view(parameter.to_local().shape).clone()
                    values[name] = DTensor.from_local(
                        rows.to(part.local.device),
                        parameter.device_mesh,
                        parameter.placements,
                        run_check=False,
                        shape=parameter.shape,
                        stride=parameter.stride(),
                    )


def check_state(state: Mapping[str, Stateful]) -> None:
    """Check before the first step that checkpoints can save all of `state`.

    Raises:
        UsageFault: an object has no state methods, or contains a type that is never written to a file.
    """
    for name, stateful in state.items():
        if not all(callable(getattr(stateful, method, None)) for method in ("state_dict", "load_state_dict")):
            raise UsageFault(
                f"state[{name!r}] is a {type(stateful).__name__}; expected an object with state_dict() and "
                "load_state_dict(); remove it from state, or add both methods."
            )
        try:
            split(stateful.state_dict(), f"state.{name}", {})
        except TypeError as error:
            raise UsageFault(f"{error}; leave {name!r} out of state, or return these from its state_dict().") from error


def warn_of_schedule(state: Mapping[str, Stateful], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Warn about a scheduler that is missing in `state`."""
    is_scheduled = any("initial_lr" in group for optimizer in optimizers for group in optimizer.param_groups)
    if is_scheduled and not any(map(_is_scheduler, state.values())):
        log.warning(
            "the optimizer has a learning-rate scheduler that checkpoints do not contain, so it restarts with each "
            'session; give join() state={"scheduler": scheduler}, or use swarm.scheduler(optimizer) instead'
        )


def _is_scheduler(stateful: Any) -> bool:
    """Return whether the object is a learning-rate scheduler or wraps one, as accelerate's does."""
    return hasattr(stateful, "last_epoch") or (hasattr(stateful, "scheduler") and _is_scheduler(stateful.scheduler))


def _reads(stateful: Stateful) -> bool:
    """Return whether the object supplies data, so that it advances before the step that uses the data.

    A module may also be iterable, but supplies no data.
    """
    return hasattr(stateful, "__iter__") and not isinstance(stateful, nn.Module)


def _held(part: Part) -> Held:
    return part if part.is_sharded else part.local.view(part.shape)


def _dtype_of(held: Held) -> torch.dtype:
    return held.local.dtype if isinstance(held, Part) else held.dtype


def specs_of(tensors: Mapping[str, Held]) -> list[TensorSpec]:
    """Return the specs of all tensors of a checkpoint, wider types first."""
    specs = [spec_of(name, _dtype_of(held), held.shape) for name, held in tensors.items()]
    return sorted(specs, key=lambda spec: -ITEM_BYTES[spec.dtype])


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of all random generators that a training loop may use."""
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


@torch.no_grad()
def frozen_digests(module: nn.Module) -> dict[str, str]:
    """Return bare name -> type, size and a digest of sampled values for each parameter without `requires_grad`."""
    digests = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad or is_sharded(parameter) or parameter.layout is not torch.strided:
            continue
        flat = parameter.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // NUM_SAMPLED)].cpu().contiguous()
        digest = blake2b(some.view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest()
        digests[bare_name(name, module)] = f"{str(parameter.dtype).removeprefix('torch.')} {flat.numel()} {digest}"
    return digests


def check_frozen(now: Mapping[str, str], before: Mapping[str, str], where: str) -> None:
    """Compare frozen parameters with an earlier session's, where both have a parameter of the same name and type.

    An adapter or a head is worthless on a different base, and no other check detects that.

    Raises:
        LocalFault: a frozen parameter has different values.
    """
    for name, digest in now.items():
        earlier = before.get(name, "")
        if earlier.split()[:1] == digest.split()[:1] and earlier != digest:
            raise LocalFault(
                f"the frozen parameter {name!r} differs from that of this peer's earlier sessions ({where}); expected "
                "the same values; load the same base model, or join with another data folder"
            )


def all_finite(values: Tensor) -> bool:
    """Return whether no value is NaN or infinite. values: any floating dtype, shape and device.

    A sum is finite only if every term is. Adding is many times faster than checking every value, which is only done
    when a sum is not finite.
    """
    return math.isfinite(float(values.detach().sum())) or bool(torch.isfinite(values).all())
