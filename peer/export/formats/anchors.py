"""A run's anchors taken home, and what is said of them beside the model."""

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
from peer.export.formats.model_header import DIGEST_NAME, SCHEMA, ExportedFragment, config_digest
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
        files: the folder with the run's files, checked; None: it has none.
        contributors: ids of those whose machines were members that have trained when it was taken home; empty for a
            checkpoint.
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
        """One per fragment."""
        return tuple(facts.version for facts in self.facts)

    @property
    def tokens(self) -> int:
        """Tokens committed into the fragment that has most of them behind it."""
        return committed_tokens(facts.lineage_tokens for facts in self.facts)

    @property
    def num_bytes(self) -> int:
        """Of all values."""
        return 4 * sum(facts.num_values for facts in self.facts)


def facts_of(
    index: int, version: int, lineage_tokens: int, anchor: F32, momentum: F32, num_confirmed: int
) -> ExportedFragment:
    """Facts about one fragment; its digest is computed from the values, whatever anybody said. Arrays: [n]."""
    return ExportedFragment(
        index=index,
        version=version,
        digest=anchor_digest(anchor, momentum).hex(),
        lineage_tokens=lineage_tokens,
        num_values=anchor.size,
        num_confirmed=num_confirmed,
    )


def named_tensors(anchors: Anchors) -> dict[str, Tensor]:
    """The built-in model's parameters under its own names, in order: float32 on the CPU.

    Raises:
        Incompatible: the model cannot be cut as the manifest says.
    """
    shapes = shapes_of(anchors.manifest)
    return tensors_of(layout_of(anchors.manifest, shapes), shapes, anchors.values)


def own_module_tensors(anchors: Anchors) -> dict[str, Tensor]:
    """Parameters and averaged buffers of a module from its owner's code: under its names where the run says them, else
    flat.

    float32 on the CPU; a flat one is called `fragment.N`.
    """
    named = named_shapes(anchors.manifest, anchors.files)
    if named is None:
        return {f"fragment.{index}": torch.from_numpy(values) for index, values in sorted(anchors.values.items())}
    return tensors_of(layout_of(anchors.manifest, *named), [*named[0], *named[1]], anchors.values)


def tensors_of(layout: FragmentLayout, shapes: Shapes, values: Mapping[int, F32]) -> dict[str, Tensor]:
    """Parameters put together from fragments. `values`: fragment -> float32 [num_values]."""
    tensors = {name: torch.empty(shape) for name, shape in shapes}
    fill_tensors(tensors, layout, values)
    return tensors


def parameters_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return the digest of a model's parameters that `run.json` has: 64 hexadecimal digits."""
    return tensors_digest(tensors.values()).hex()


def run_facts(anchors: Anchors, parameters_digest: str, now: float, **others: Any) -> dict[str, Any]:
    """What is said of the model, under a digest of its own; `now` in unix seconds.

    Args:
        parameters_digest: `parameters_sha256` of a model that can be checked by it; empty: of none.
        others: further facts of the form in which it is written.
    """
    facts = {
        "schema": SCHEMA,
        "run_id": anchors.run_id,
        "software": software(),
        "exported_at": now,
        "origin": anchors.origin,
        "manifest_hash": anchors.manifest.hash.hex(),
        "manifest": json.loads(anchors.manifest.to_bytes()),
        "versions": list(anchors.versions),
        "tokens": anchors.tokens,
        "fragments": [fragment.model_dump() for fragment in anchors.facts],
        "validation_loss": anchors.evaluation and anchors.evaluation.loss,
        "validation_version": anchors.evaluation and anchors.evaluation.version,
        "parameters_sha256": parameters_digest,
        **others,
    }
    return {**facts, DIGEST_NAME: config_digest(facts)}
