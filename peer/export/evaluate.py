"""`peer evaluate`: how well a model does."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dht.ground.quantities import count_text
from peer.config.data_source import WEB, source_here
from peer.export.formats.model_card import loss_text
from peer.export.model_source import ModelSource
from peer.export.opened_model import loadable_folder, open_model
from peer.export.task_scores import load_harness, score_tasks
from peer.trainer.data.corpus import open_run_corpus
from peer.trainer.data.tokenizing import OpenTokenizer
from peer.trainer.devices.device_choice import select_device
from peer.trainer.model.evaluation import held_out_accuracy, validation_loss

USUAL_TEXT = (
    "Question: what does a flock of birds do at dusk?\nAnswer: 1,000 of them " + "a" * 64 + "!\n\ttürkis 日本 🐦"
)
"""Letters, digits, signs, a long word and characters of several bytes, as a task of lm-eval may have them."""


def evaluate_model(
    source: ModelSource, data: str | None, device_name: str, as_json: bool, base: Path | None = None
) -> int:
    """Print the validation loss of a model; returns the exit code.

    Args:
        data: measure on the held-out part of this instead of the run's own source.
        base: see `open_model`.

    Raises:
        LocalFault: the model or the data cannot be had; the sentence says why.
    """
    device = select_device(device_name)
    opened = open_model(source, base)
    manifest = opened.manifest
    used = source_here(manifest.data.source, data, manifest.data.reader)
    classifies = manifest.data.label_field is not None
    what = manifest.counted_in
    with tempfile.TemporaryDirectory(prefix="murmuration-") as cache:
        # Text is tokenized with the tokenizer beside the model; its shards, or downloaded ones, are needed once.
        reads = opened.tokenizer is not None or manifest.data.image_field is not None or used.startswith(WEB)
        room = Path(cache) if reads else None
        corpus = open_run_corpus(manifest, used, room, tokenizer_path=opened.tokenizer, is_own=data is not None)
        with contextlib.closing(corpus):
            model, size = opened.model.to(device), (manifest.data.evaluation_batches, manifest.training.batch_size)
            context = 0 if classifies else manifest.model.context
            num_held_out = corpus.num_held_out(*size, context)
            overlaps = num_held_out < size[0] * size[1] * max(1, context)
            loss = validation_loss(model, corpus, *size)
            accuracy = held_out_accuracy(model, corpus, *size) if classifies else None
    facts: dict[str, Any] = {
        "schema": 1,
        "run_id": opened.run_id,
        "versions": list(opened.versions),
        "tokens": opened.tokens,
        "data": used,
        f"num_held_out_{what}": num_held_out,
        "validation_loss": loss if math.isfinite(loss) else None,
        **({} if accuracy is None else {"accuracy": accuracy}),
        "bits_per_byte": _bits_per_byte(loss, None if manifest.model.task == "masked-lm" else corpus.bytes_per_token),
    }
    if as_json:
        print(json.dumps(facts))
        return 0
    print(f"Run         {opened.run_id}, versions {'/'.join(map(str, opened.versions))}")
    more_than_once = ": all that it has, some of them more than once" if overlaps else ""
    print(f"Data        held-out part of {used}, {count_text(num_held_out)} {what}{more_than_once}")
    print(f"Loss        {loss_text(loss, manifest)}")
    if accuracy is not None:
        print(f"Accuracy    {100 * accuracy:.1f} %")
    if facts["bits_per_byte"] is not None:
        print(f"            {facts['bits_per_byte']:.4f} bits per byte")
    return 0


def evaluate_tasks(source: ModelSource, tasks: str, limit: int | None, device_name: str, as_json: bool) -> int:
    """Print the scores of a model in tasks of lm-eval; returns the exit code.

    Args:
        tasks: names, YAML files or folders of them, separated by commas.
        limit: samples of each task; None: all.

    Raises:
        LocalFault: the model cannot be had, a task is not known, or lm-eval is not installed; the sentence says which.
    """
    load_harness()
    device = select_device(device_name)
    with tempfile.TemporaryDirectory(prefix="murmuration-") as temporary:
        folder, facts = loadable_folder(source, Path(temporary))
        # The harness loads the tokenizer in this process: one that stops its library is found before that.
        with OpenTokenizer(folder) as tokenizer:
            tokenizer.decode(tokenizer.encode([USUAL_TEXT])[0])
        scores = score_tasks(folder, tasks, limit, str(device))
    if as_json:
        print(json.dumps({"schema": 1, **facts, "limit": limit, "scores": [asdict(score) for score in scores]}))
        return 0
    print(f"Run         {facts['run_id']}, versions {'/'.join(map(str, facts['versions']))}")
    width = max(4, *(len(score.task) for score in scores)) if scores else 4
    widest = max(6, *(len(score.metric) for score in scores)) if scores else 6
    print(f"\n{'task':<{width}}  {'metric':<{widest}}  {'value':>9}  {'± error':>9}  samples")
    for score in scores:
        error = "" if score.error is None else f"{score.error:.4f}"
        print(f"{score.task:<{width}}  {score.metric:<{widest}}  {score.value:>9.4f}  {error:>9}  {score.num_samples}")
    return 0


def _bits_per_byte(loss: float, bytes_per_token: float | None) -> float | None:
    """Of a loss in nats per token; None where nobody knows how many bytes of text a token stands for."""
    if bytes_per_token is None or not math.isfinite(loss):
        return None
    return loss / math.log(2) / bytes_per_token
