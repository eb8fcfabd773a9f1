"""Names and shapes of a model's parameters, without creating the model, and their cut into fragments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from averaging.outer.fragment_layout import Cut, FragmentLayout, build_layout, with_buffers
from dht.ground.errors import Incompatible
from peer.config.manifest import RunManifest
from peer.config.model_section import ModelSection

WRAPPER_NAMES = (
    *("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"),  # torch's
    *("_forward_module", "_architecture"),  # Lightning's, and the name in `peer.trainer.hf.task_losses`
)
"""Attributes in which wrappers keep the wrapped module, anywhere in a module; other modules do not use these names."""
_USED_BY_ROWS = ("embed", "wte.", "wpe.", "lm_head")
"""Parts of the names of embeddings and output heads, in the built-in model and in transformers."""
WRAPPER_CLASSES = ("DataParallel", "DistributedDataParallel", "AveragedModel")
"""Classes of torch that keep the wrapped module as `module`, a name that other modules may use."""


_LARGEST_STATISTIC = 2.0**126
"""Limit of a value in running statistics; larger values, and infinity, cannot be averaged."""
_LARGEST_OF_ADDED_MASKS = -1000.0
"""Largest value with which an added mask hides a position: its share of a softmax is zero in any format."""

Shapes = list[tuple[str, tuple[int, ...]]]
"""(name, shape) of parameters or buffers, in order."""


def parameter_shapes(shape: ModelSection) -> Shapes:
    """Return (name, shape) of the parameters of `build_model(shape, ...)`, in order, without creating the model.

    Creating the model would load torch, which takes a second and 200 MB in each process that only needs sizes.
    """
    width, hidden = shape.d_model, hidden_width(shape.d_model)
    shapes: Shapes = [("embedding.weight", (shape.vocab_size, width))]
    for layer in range(shape.num_layers):
        of_layer = {
            "attention_norm": (width,),
            "attention.query_key_value": (3 * width, width),
            "attention.out": (width, width),
            "feed_forward_norm": (width,),
            "feed_forward.gate_and_value": (2 * hidden, width),
            "feed_forward.out": (width, hidden),
        }
        shapes += [(f"blocks.{layer}.{name}.weight", size) for name, size in of_layer.items()]
    shapes.append(("norm.weight", (width,)))
    return shapes


def hidden_width(d_model: int) -> int:
    """Return the hidden width of a feed-forward layer.

    The width is two thirds of the typical 4 * d_model, because SwiGLU has three matrices (arXiv 2002.05202).
    """
    return -(-8 * d_model // 3 // 16) * 16  # multiples of 16 fill vector units and tensor cores


def is_hidden_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether Muon orthogonalises a parameter, that is, whether it is a matrix between hidden layers.

    Embeddings and the output head are excluded, because their rows are used one by one (arXiv 2502.16982, section 2.2).
    """
    return len(shape) == 2 and not any(part in name for part in _USED_BY_ROWS) and not name.startswith("head")


def bare_name(name: str, module: object = None) -> str:
    """Return the name of a parameter or buffer of `module` without wrappers around the module or its parts.

    The run, its checkpoints and its frozen parameters use bare names. So each peer may choose torch.compile, activation
    checkpointing or data parallelism freely, and differently in each session.
    """
    bare = []
    for part in name.split("."):
        if part not in WRAPPER_NAMES and not (part == "module" and _is_wrapper(module)):
            bare.append(part)
        module = getattr(module, "_modules", {}).get(part)
    return ".".join(bare)


def _is_wrapper(module: object) -> bool:
    return any(
        kind.__name__ in WRAPPER_CLASSES and kind.__module__.partition(".")[0] == "torch"
        for kind in type(module).__mro__
    )


class OwnModule(Protocol):
    """The part of `torch.nn.Module` that describes what a run averages."""

    def named_parameters(self) -> Iterator[tuple[str, Any]]: ...
    def named_buffers(self) -> Iterator[tuple[str, Any]]: ...
    def state_dict(self) -> Mapping[str, Any]: ...


def trained_parameters(module: OwnModule) -> list[tuple[str, Any]]:
    """Return (bare name, tensor) of the parameters that a run averages, in the module's order, tied parameters once."""
    return [
        (bare_name(name, module), parameter) for name, parameter in module.named_parameters() if parameter.requires_grad
    ]


def shared_buffers(module: OwnModule) -> list[tuple[str, Any]]:
    """Return (bare name, tensor) of the buffers that a run averages, in the module's order.

    These are the floating-point buffers that are saved with the module, each once, except masks. Each peer keeps its
    own integer counts.
    """
    # Some wrappers save the wrapped module's tensors under the module's own names.
    saved = {bare_name(name, module) for name in module.state_dict()}
    buffers = ((bare_name(name, module), buffer) for name, buffer in module.named_buffers())
    return [
        (name, buffer)
        for name, buffer in buffers
        if name in saved and buffer.dtype.is_floating_point and buffer.numel() and not _is_mask(buffer)
    ]


def _is_mask(buffer: Any) -> bool:
    """Return whether a buffer is a mask, which is added or multiplied and is the same on every peer."""
    if buffer.is_meta:
        return False
    values = buffer.detach().float()
    if not float(values.abs().max()) < _LARGEST_STATISTIC:  # or NaN
        return True
    others = values[values != 0]
    is_mixed = 0 < others.numel() < values.numel()
    return is_mixed and (bool((others == 1).all()) or bool((others <= _LARGEST_OF_ADDED_MASKS).all()))


def averaged_parts(module: OwnModule, manifest: RunManifest) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Return (bare name, tensor) of the parameters, and of the buffers, that a run averages, in fragment order."""
    return trained_parameters(module), shared_buffers(module) if manifest.model.num_buffer_values else []


def tensor_shapes(tensors: Iterable[tuple[str, Any]]) -> Shapes:
    """Return (name, shape) of each (name, tensor)."""
    return [(name, tuple(tensor.shape)) for name, tensor in tensors]


def layout_of(manifest: RunManifest, shapes: Shapes, buffer_shapes: Shapes | None = None) -> FragmentLayout:
    """Return the fragments of a model under a manifest: its parameters, and its buffers if the run averages them.

    Raises:
        Incompatible: the model cannot be cut as the manifest specifies.
    """
    try:
        layout = build_layout(shapes, manifest.averaging.num_fragments, cut_of(manifest))
        return with_buffers(layout, buffer_shapes or [])
    except ValueError as error:
        raise Incompatible(
            f"the model of this run cannot be cut as its manifest specifies: {error}; tell the run's owner"
        ) from error


def cut_of(manifest: RunManifest) -> Cut:
    """Return how a model is cut: the built-in model by whole layers, all others evenly.

    For models of other kinds, a seed has only the number of parameters.
    """
    return "layers" if manifest.model.kind == "gpt" else "balanced"


def seed_sizes(manifest: RunManifest) -> tuple[int, ...]:
    """Return the sizes of the fragments of a run's model, without creating it, for a seed, which has no weights."""
    return seed_layout(manifest).sizes


def seed_layout(manifest: RunManifest) -> FragmentLayout:
    """Return the fragments of a run's model, without creating it; only the sizes are right for kinds except "gpt"."""
    return layout_of(manifest, shapes_of(manifest), buffer_shapes_of(manifest))


def shapes_of(manifest: RunManifest) -> Shapes:
    """Return (name, shape) of the parameters of a run's model.

    For every kind except "gpt", they are one flat tensor of the model's size.
    """
    if manifest.model.kind != "gpt":
        assert manifest.model.num_parameters is not None
        return [("all", (manifest.model.num_parameters,))]
    return parameter_shapes(manifest.model)


def buffer_shapes_of(manifest: RunManifest) -> Shapes:
    """Return (name, shape) of the buffers that a run averages: one flat tensor of their size, or an empty list."""
    num_values = manifest.model.num_buffer_values
    return [] if num_values is None else [("buffers", (num_values,))]


def num_orthogonalised(manifest: RunManifest) -> int:
    """Return the number of parameters that the built-in trainer's optimizer orthogonalises; 0 unless it is Muon."""
    if manifest.training.optimizer != "muon":
        return 0
    return sum(math.prod(shape) for name, shape in shapes_of(manifest) if is_hidden_matrix(name, shape))


def layout_digest_of(manifest: RunManifest) -> bytes:
    """Return `FragmentLayout.digest` (32 bytes) of a run's model, without creating it."""
    if manifest.model.layout_digest is not None:
        return bytes.fromhex(manifest.model.layout_digest)
    return seed_layout(manifest).digest
