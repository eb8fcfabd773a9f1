"""How a run's manifest cuts a model into fragments."""

from __future__ import annotations

import math
from collections.abc import Sequence

from averaging.outer.layout import FragmentLayout, build_layout
from dht.errors import Incompatible
from peer.config.manifest import RunManifest
from peer.config.model_shapes import is_hidden_matrix, parameter_shapes


def layout_of(manifest: RunManifest, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> FragmentLayout:
    """The fragments of a model under a manifest.

    Raises:
        Incompatible: the model does not fit the manifest.
    """
    try:
        return build_layout(shapes, manifest.averaging.num_fragments, manifest.averaging.fragment_by)
    except ValueError as error:
        raise Incompatible(
            f"the model of this run cannot be cut as its manifest says: {error}; tell the run's owner"
        ) from error


def seed_sizes(manifest: RunManifest) -> tuple[int, ...]:
    """Sizes of the fragments of a run's model, without its parameters (a seed needs no weights of its own)."""
    return seed_layout(manifest).sizes


def seed_layout(manifest: RunManifest) -> FragmentLayout:
    """The fragments of a run's model, without its parameters; of a custom model only the sizes are right."""
    return layout_of(manifest, shapes_of(manifest))


def shapes_of(manifest: RunManifest) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) of the parameters of a run's model; of a custom model one flat tensor, for its size."""
    if manifest.model.kind == "custom":
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
