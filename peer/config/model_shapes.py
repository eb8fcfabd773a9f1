"""Names and shapes of the built-in model's parameters, for whoever needs no model: the network side, `peer plan`."""

from __future__ import annotations

from typing import Protocol


class ModelShape(Protocol):
    """The dimensions `build_model` reads; the manifest's model section has them."""

    @property
    def num_layers(self) -> int: ...
    @property
    def d_model(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def tied_head(self) -> bool: ...


def parameter_shapes(shape: ModelShape) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) of the parameters of `build_model(shape, ...)`, in order, without making any.

    Making the model would tell the same, and load torch: a second, and 200 MB in each process that only wants to know
    sizes.
    """
    width, hidden = shape.d_model, hidden_width(shape.d_model)
    shapes: list[tuple[str, tuple[int, ...]]] = [("embedding.weight", (shape.vocab_size, width))]
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
    return shapes if shape.tied_head else [*shapes, ("head.weight", (shape.vocab_size, width))]


def hidden_width(d_model: int) -> int:
    """Of a feed-forward part: two thirds of the usual four widths, as SwiGLU has three matrices (arXiv 2002.05202)."""
    return -(-8 * d_model // 3 // 16) * 16  # multiples of 16 fill vector units and tensor cores


def is_hidden_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether Muon orthogonalises a parameter: a matrix between hidden layers.

    Embeddings and the output head look like matrices, but their rows are used alone (arXiv 2502.16982, section 2.2).
    """
    return len(shape) == 2 and "embedding" not in name and not name.startswith("head")
