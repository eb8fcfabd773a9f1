"""Anchors of a run that has just begun."""

from __future__ import annotations

import numpy as np

from peer.config.manifest import RunManifest
from peer.config.model_shapes import seed_sizes
from peer.export.formats.anchors import Anchors, facts_of


def initial_anchors(manifest: RunManifest) -> Anchors:
    values = {index: np.zeros(size, np.float32) for index, size in enumerate(seed_sizes(manifest))}
    facts = tuple(facts_of(index, 0, 0, part, np.zeros_like(part), 0) for index, part in values.items())
    return Anchors("tiny.aaaaaaaaaaaaaaaaaaaa", manifest, facts, values, "a test")
