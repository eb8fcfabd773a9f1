"""The passes of an inner step: number formats, compiling, and as many sequences per pass as memory allows.

The run sets the step's batch; the number of passes does not change it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dht.ground.errors import UsageFault
from peer.config.peer_config import Precision
from peer.trainer.computing.compute_choices import Tell
from peer.trainer.computing.memory_exceptions import is_about_memory

_Result = TypeVar("_Result")

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class MixedPrecision:
    """The autocast of a pass (arXiv 1710.03740), and for float16 a loss scale that keeps small gradients from
    vanishing.

    Args:
        choice: auto is bf16 on CUDA and fp32 elsewhere.
        is_sharded: other processes hold part of each gradient's rows.

    Raises:
        UsageFault: `choice` is fp16, and parameters are not float32 or are sharded.
    """

    def __init__(
        self, choice: Precision, device: torch.device, parameters: Iterable[Tensor], *, is_sharded: bool = False
    ) -> None:
        chosen = ("bf16" if device.type == "cuda" else "fp32") if choice == "auto" else choice
        self._device = device
        self._dtype = _AUTOCAST.get(chosen)
        self._scaler: torch.amp.GradScaler | None = None
        if self._dtype != torch.float16:
            return
        others = {str(tensor.dtype).removeprefix("torch.") for tensor in parameters if tensor.dtype != torch.float32}
        if others or is_sharded:
            what = "sharded parameters" if is_sharded else f"parameters in {', '.join(sorted(others))}"
            raise UsageFault(
                f"--precision fp16 was given for a model of {what}; expected complete float32 parameters, whose "
                "gradients can be scaled; choose --precision bf16 or fp32."
            )
        self._scaler = torch.amp.GradScaler(device.type)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which a forward pass runs."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss multiplied by the scale; the backward pass starts from this value."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients after the last backward pass of a step; halve a scale that was too large."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
            # The loop checks the norm itself, and skips a step whose norm is not finite.
            self._scaler.update()


Loss = Callable[[Tensor, Tensor], Tensor]


class CompiledLoss:
    """Calls `loss` through torch.compile. If the compiler fails, notes the reason and calls `loss` directly.

    Args:
        tell: receives the progress of compiling and the sentence about a failure.
    """

    def __init__(self, loss: Loss, tell: Tell) -> None:
        # This warning is meant for the author of a loop; here the owner of the machine chooses the number format.
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
        self._plain = loss
        self._compiled: Loss | None = torch.compile(loss)
        self._tell = tell
        self._is_first = True

    def __call__(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if self._is_first:
            self._is_first = False
            self._tell.compiling(True)
        if self._compiled is not None:
            try:
                return self._compiled(tokens, targets)
            except Exception as error:
                if is_about_memory(error) or not _is_of_compiler(error):
                    raise
                reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            self._compiled = None
            self._tell.compiling(False)
            self._tell.note(
                f"--compile: torch.compile failed ({reason}); training continues without it; install a C++ "
                "compiler, such as g++, and on CUDA also triton"
            )
        return self._plain(tokens, targets)


def _is_of_compiler(error: Exception) -> bool:
    kinds = (cls.__module__ for cls in type(error).__mro__)
    return any(kind.startswith(("torch._dynamo", "torch._inductor", "torch.fx", "triton")) for kind in kinds)


class MicroBatch:
    """A number of sequences per pass that is halved whenever memory runs out.

    Args:
        size: number of sequences to begin with, at least 1.
        may_halve: whether a step can be computed again from its start; false where other processes take part in the
            step.
        tell: called with the size before and the size that fitted, after the size was halved.
    """

    def __init__(self, size: int, *, may_halve: bool, tell: Callable[[int, int], object]) -> None:
        self.size = size
        self._may_halve = may_halve
        self._tell = tell

    def parts(self, positions: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Split `positions`, int64 [n], into parts of at most `size`."""
        return (positions[start : start + self.size] for start in range(0, len(positions), self.size))

    def fitting(self, compute: Callable[[], _Result], forget: Callable[[], object]) -> _Result:
        """Return the result of `compute`, which is called again with half the size until memory suffices.

        Args:
            forget: frees the results of an unfinished `compute`.

        Raises:
            Exception: raised by `compute`; also an exception about memory when a single sequence does not fit.
        """
        before = self.size
        while True:
            try:
                result = compute()
            except (RuntimeError, MemoryError) as error:
                if self.size == 1 or not self._may_halve or not is_about_memory(error):
                    raise
            else:
                break
            # Only here have the frames of the exception, and the tensors in them, been freed.
            self.size //= 2
            forget()
        if self.size < before:
            self._tell(before, self.size)
        return result
