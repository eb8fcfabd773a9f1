"""A run's fetched anchors, and the facts that are stored beside the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from averaging.arrays import F32
from averaging.outer.fragment_layout import FragmentLayout
from averaging.outer.outer_step import anchor_digest
from dht.records.evaluation import Evaluation
from peer.config.manifest import RunManifest
from peer.config.model_shapes import Shapes, layout_of, shapes_of
from peer.export.formats.model_header import ExportedFragment, sealed
from peer.files.layout_file import named_shapes
from peer.trainer.model.evaluation import fill_tensors
from peer.trainer.model.gpt import tensors_digest
from peer.version import software
from peer.view.run_clock import committed_tokens


@dataclass(frozen=True, slots=True)
class Anchors:
    """A run's anchors at some versions.

    Attributes:
        values: fragment -> float32 [num_values].
        files: the folder with the run's verified files; None: the run has none.
        contributors: ids of the people whose machines were members with training work when the anchors were fetched;
            empty for a checkpoint.
    """

    run_id: str
    manifest: RunManifest
    facts: tuple[ExportedFragment, ...]
    values: Mapping[int, F32]
    origin: str
    evaluation: Evaluation | None = None
    contributors: tuple[str, ...] = ()
    files: Path | None = None

    @property
    def versions(self) -> tuple[int, ...]:
        """One version per fragment."""
        return tuple(facts.version for facts in self.facts)

    @property
    def tokens(self) -> int:
        """Tokens committed into the fragment with the most committed tokens."""
        return committed_tokens(facts.lineage_tokens for facts in self.facts)

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        return 4 * sum(facts.num_values for facts in self.facts)


def facts_of(
    index: int, version: int, lineage_tokens: int, anchor: F32, momentum: F32, num_confirmed: int
) -> ExportedFragment:
    """Return facts about one fragment; the digest is computed from the values, not taken from members. Arrays: [n]."""
    return ExportedFragment(
        index=index,
        version=version,
        digest=anchor_digest(anchor, momentum).hex(),
        lineage_tokens=lineage_tokens,
        num_values=anchor.size,
        num_confirmed=num_confirmed,
    )


def named_tensors(anchors: Anchors) -> dict[str, Tensor]:
    """Return the built-in model's parameters under its own names, in order: float32 on the CPU.

    Raises:
        Incompatible: the model cannot be divided as in the manifest.
    """
    shapes = shapes_of(anchors.manifest)
    return tensors_of(layout_of(anchors.manifest, shapes), shapes, anchors.values)


def own_module_tensors(anchors: Anchors) -> dict[str, Tensor]:
    """Return parameters and averaged buffers of a module from its owner's code, named if the run has the names, else
    flat.

    They are float32 on the CPU; a flat one is called `fragment.N`.
    """
    named = named_shapes(anchors.manifest, anchors.files)
    if named is None:
        return {f"fragment.{index}": torch.from_numpy(values) for index, values in sorted(anchors.values.items())}
    return tensors_of(layout_of(anchors.manifest, *named), [*named[0], *named[1]], anchors.values)


def tensors_of(layout: FragmentLayout, shapes: Shapes, values: Mapping[int, F32]) -> dict[str, Tensor]:
    """Return parameters assembled from fragments. `values`: fragment -> float32 [num_values]."""
    tensors = {name: torch.empty(shape) for name, shape in shapes}
    fill_tensors(tensors, layout, values)
    return tensors


def parameters_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return the digest of a model's parameters for `run.json`: 64 hexadecimal digits."""
    return tensors_digest(tensors.values()).hex()


def run_facts(anchors: Anchors, parameters_digest: str, now: float, **others: Any) -> dict[str, Any]:
    """Return the facts about the model, with a digest over them; `now` in unix seconds.

    Args:
        parameters_digest: `parameters_sha256` of a model that can be checked; empty: no digest.
        others: additional facts of the format in which the model is written.
    """
    facts = {
        "run_id": anchors.run_id,
        "software": software(),
        "exported_at": now,
        "origin": anchors.origin,
        "manifest_hash": anchors.manifest.hash.hex(),
        "manifest": json.loads(anchors.manifest.to_bytes()),
        "versions": list(anchors.versions),
        "tokens": anchors.tokens,
        "fragments": [fragment.model_dump() for fragment in anchors.facts],
        "parameters_sha256": parameters_digest,
        **others,
    }
    return sealed(facts, anchors.evaluation)
