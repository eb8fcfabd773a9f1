"""What a demo's model says and how badly it guesses, before the training and after it.

A process of its own, because it loads torch: `python -m peer.demo.measuring_process FOLDER DATA TOKENIZER` prints
`Words` as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from torch import nn

from averaging.arrays import F32
from dht.ground.regular_files import read_regular
from peer.config.data_source import EVALUATION_BATCHES
from peer.config.manifest import MAX_MANIFEST_BYTES, RunManifest
from peer.demo.measuring_messages import ANCHORS_NAME, MANIFEST_NAME, Words
from peer.export.formats.custom_module import fill_module
from peer.export.opened_model import OpenedModel
from peer.export.sample import written
from peer.trainer.data.corpus import open_run_corpus
from peer.trainer.hf.run_model import build_run_model
from peer.trainer.model.evaluation import validation_loss

PROMPT = "def "
SEED = 7
"""The same before and after: only the model differs."""
TEMPERATURE = 0.6
"""Below 1: a model of two minutes is unsure, and its likelier letters show what it has learned."""
NUM_BYTE_TOKENS = 160
"""Two or three lines."""
NUM_WORD_TOKENS = 60
"""About as many letters with a tokenizer."""


def measure(
    manifest: RunManifest, data: str | None, tokenizer: Path | None, anchors: Mapping[int, F32] | None
) -> Words:
    """Measure a run's model at its initial values and at `anchors` (fragment -> float32 [num_values]).

    Args:
        data: as given to `--data`; None: the run's own source.
        tokenizer: the run's tokenizer.json; None: its tokens are bytes.
    """
    model = build_run_model(manifest)
    batches, size = EVALUATION_BATCHES, manifest.training.batch_size
    with contextlib.closing(open_run_corpus(manifest, data or manifest.data.source, is_own=True)) as corpus:
        loss_first, said_first = validation_loss(model, corpus, batches, size), _said(model, manifest, tokenizer)
        if anchors is None:
            return Words(loss_first, said_first)
        fill_module(model, manifest, anchors)
        loss_last, said_last = validation_loss(model, corpus, batches, size), _said(model, manifest, tokenizer)
        return Words(loss_first, said_first, loss_last, said_last)


def _said(model: nn.Module, manifest: RunManifest, tokenizer: Path | None) -> str:
    """What `peer sample` would print of it."""
    opened = OpenedModel(model, manifest, manifest.name, (), 0, tokenizer)
    num_tokens = NUM_BYTE_TOKENS if tokenizer is None else NUM_WORD_TOKENS
    return "".join(written(opened, model, PROMPT, num_tokens, TEMPERATURE, SEED))


def main(folder: Path, data: str, tokenizer: str) -> None:
    """Measure what `write_anchors` wrote; the answer goes to standard output. Empty texts: the run has none."""
    with np.load(folder / ANCHORS_NAME, allow_pickle=False) as found:
        anchors = {int(name): found[name] for name in found.files}
    manifest = RunManifest.from_bytes(read_regular(folder / MANIFEST_NAME, MAX_MANIFEST_BYTES))
    words = measure(manifest, data or None, Path(tokenizer) if tokenizer else None, anchors or None)
    print(json.dumps(asdict(words)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
