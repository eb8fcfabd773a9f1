"""Names and shapes of the model's parameters, without making any, and how a manifest cuts them into fragments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from averaging.outer.fragment_layout import Cut, FragmentLayout, build_layout
from dht.ground.errors import Incompatible
from peer.config.manifest import RunManifest
from peer.config.model_section import ModelSection

WRAPPER_NAMES = (
    *("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"),  # torch's
    *("_forward_module", "_architecture"),  # Lightning's, and that of `peer.trainer.hf.task_losses`
)
"""Names under which wrappers keep what they wrap, anywhere in a module; no module of anybody's has them."""
_USED_BY_ROWS = ("embed", "wte.", "wpe.", "lm_head")
"""In names of embeddings and of output heads, the built-in model's and those of transformers."""
WRAPPER_CLASSES = ("DataParallel", "DistributedDataParallel", "AveragedModel")
"""Of torch. They keep what they wrap as `module`, which may be anybody's name."""


Shapes = list[tuple[str, tuple[int, ...]]]
"""(name, shape) of parameters, in order."""


def parameter_shapes(shape: ModelSection) -> Shapes:
    """(name, shape) of the parameters of `build_model(shape, ...)`, in order, without making any.

    Making the model would tell the same, and load torch: a second, and 200 MB in each process that only wants to know
    sizes.
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
    """Of a feed-forward part: two thirds of the usual four widths, as SwiGLU has three matrices (arXiv 2002.05202)."""
    return -(-8 * d_model // 3 // 16) * 16  # multiples of 16 fill vector units and tensor cores


def is_hidden_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether Muon orthogonalises a parameter: a matrix between hidden layers.

    Embeddings and the output head look like matrices, but their rows are used alone (arXiv 2502.16982, section 2.2).
    """
    return len(shape) == 2 and not any(part in name for part in _USED_BY_ROWS) and not name.startswith("head")


def bare_name(name: str, module: object = None) -> str:
    """The name of a parameter or buffer of `module` without what wraps the module or parts of it.

    A peer may compile, checkpoint activations or use data parallel as it likes, and otherwise in its next session. The
    run, its checkpoints and its frozen parameters go by bare names.
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
    """(bare name, tensor) of the parameters that a run averages, in the module's own order, tied ones once."""
    return [
        (bare_name(name, module), parameter) for name, parameter in module.named_parameters() if parameter.requires_grad
    ]


def tensor_shapes(tensors: Iterable[tuple[str, Any]]) -> Shapes:
    """(name, shape) of each (name, tensor)."""
    return [(name, tuple(tensor.shape)) for name, tensor in tensors]


def layout_of(manifest: RunManifest, shapes: Shapes) -> FragmentLayout:
    """The fragments of a model under a manifest.

    Raises:
        Incompatible: the model does not fit the manifest.
    """
    try:
        return build_layout(shapes, manifest.averaging.num_fragments, cut_of(manifest))
    except ValueError as error:
        raise Incompatible(
            f"the model of this run cannot be cut as its manifest says: {error}; tell the run's owner"
        ) from error


def cut_of(manifest: RunManifest) -> Cut:
    """How the model is cut: the built-in one by whole layers; of others seeds know the number of parameters alone."""
    return "layers" if manifest.model.kind == "gpt" else "balanced"


def seed_sizes(manifest: RunManifest) -> tuple[int, ...]:
    """Sizes of the fragments of a run's model, without its parameters (a seed needs no weights of its own)."""
    return seed_layout(manifest).sizes


def seed_layout(manifest: RunManifest) -> FragmentLayout:
    """The fragments of a run's model, without its parameters; of a model of another kind only the sizes are right."""
    return layout_of(manifest, shapes_of(manifest))


def shapes_of(manifest: RunManifest) -> Shapes:
    """(name, shape) of the parameters of a run's model; of a model of another kind one flat tensor, for its size."""
    if manifest.model.kind != "gpt":
        assert manifest.model.num_parameters is not None
        return [("all", (manifest.model.num_parameters,))]
    return parameter_shapes(manifest.model)


def num_orthogonalised(manifest: RunManifest) -> int:
    """Parameters of the matrices that the built-in trainer's optimizer orthogonalises; 0 unless it is Muon."""
    if manifest.training.optimizer != "muon":
        return 0
    return sum(math.prod(shape) for name, shape in shapes_of(manifest) if is_hidden_matrix(name, shape))


def layout_digest_of(manifest: RunManifest) -> bytes:
    """`FragmentLayout.digest` of a run's model (32 bytes), without its parameters."""
    if manifest.model.layout_digest is not None:
        return bytes.fromhex(manifest.model.layout_digest)
    return seed_layout(manifest).digest
