"""A loss through torch.compile. Where that fails, the loss goes on as it is, with a sentence."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from peer.trainer.computing.compute_choices import Tell
from peer.trainer.computing.memory_exceptions import is_about_memory

Loss = Callable[[Tensor, Tensor], Tensor]


class CompiledLoss:
    """Calls `loss` compiled; after a compiler's failure as it was.

    Args:
        tell: takes that it is being compiled, and the sentence about a failure.
    """

    def __init__(self, loss: Loss, tell: Tell) -> None:
        # It is advice for the author of a loop; here the owner of the machine chooses the number format.
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
                f"--compile: torch.compile failed ({reason}); training goes on without it; a C++ compiler, such as "
                "g++, and on CUDA triton are needed"
            )
        return self._plain(tokens, targets)


def _is_of_compiler(error: Exception) -> bool:
    kinds = (cls.__module__ for cls in type(error).__mro__)
    return any(kind.startswith(("torch._dynamo", "torch._inductor", "torch.fx", "triton")) for kind in kinds)
