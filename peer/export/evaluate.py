"""`peer evaluate`: measures the validation loss of a model, or its scores in lm-eval tasks."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dht.ground.errors import LocalFault
from dht.ground.quantities import count_text, loss_text
from peer.config.data_source import EVALUATION_BATCHES, WEB, source_here
from peer.export.formats.model_header import read_header, run_json
from peer.export.model_source import ModelSource
from peer.export.opened_model import open_model
from peer.optional_libraries import needing
from peer.trainer.data.corpus import open_run_corpus
from peer.trainer.data.tokenizing import OpenTokenizer
from peer.trainer.devices.device_choice import select_device
from peer.trainer.model.evaluation import validation_loss


def evaluate_model(
    source: ModelSource, data: str | None, device_name: str, as_json: bool, base: Path | None = None
) -> int:
    """Print the validation loss of a model; return the exit code.

    Args:
        data: measure on the held-out part of this source instead of the run's own.
        base: see `open_model`.

    Raises:
        LocalFault: the model or the data cannot be obtained; the message gives the reason.
    """
    device = select_device(device_name)
    opened = open_model(source, base)
    manifest = opened.manifest
    used = source_here(manifest.data.source, data, manifest.tokenizer is not None)
    with tempfile.TemporaryDirectory(prefix="murmuration-") as cache:
        # Text is tokenized with the tokenizer beside the model; its shards, or downloaded ones, are used only once.
        room = Path(cache) if opened.tokenizer is not None or used.startswith(WEB) else None
        corpus = open_run_corpus(manifest, used, room, tokenizer_path=opened.tokenizer, is_own=data is not None)
        with contextlib.closing(corpus):
            model, size = opened.model.to(device), (EVALUATION_BATCHES, manifest.training.batch_size)
            context = manifest.model.context
            num_held_out = corpus.num_held_out(*size, context)
            overlaps = num_held_out < size[0] * size[1] * context
            loss = validation_loss(model, corpus, *size)
    facts: dict[str, Any] = {
        "schema": 1,
        "run_id": opened.run_id,
        "versions": list(opened.versions),
        "tokens": opened.tokens,
        "data": used,
        "num_held_out_tokens": num_held_out,
        "validation_loss": loss if math.isfinite(loss) else None,
        "bits_per_byte": _bits_per_byte(loss, None if manifest.model.task == "masked-lm" else corpus.bytes_per_token),
    }
    if as_json:
        print(json.dumps(facts))
        return 0
    print(f"Run         {opened.run_id}, versions {'/'.join(map(str, opened.versions))}")
    more_than_once = ": all that it has, some of them repeated" if overlaps else ""
    print(f"Data        held-out part of {used}, {count_text(num_held_out)} tokens{more_than_once}")
    print(f"Loss        {loss_text(loss, manifest.loss_unit)}")
    if facts["bits_per_byte"] is not None:
        print(f"            {facts['bits_per_byte']:.4f} bits per byte")
    return 0


def evaluate_tasks(folder: Path, tasks: str, limit: int | None, device_name: str, as_json: bool) -> int:
    """Print the scores of an exported folder in lm-eval tasks; return the exit code.

    Args:
        tasks: names or YAML files of lm-eval tasks, separated by commas.
        limit: samples of each task; None: all.

    Raises:
        LocalFault: the folder cannot be read, or lm-eval is not installed or failed.
    """
    with needing("`peer evaluate --tasks`", "lm-eval", "eval"):
        import lm_eval
        from lm_eval.models.huggingface import HFLM
        from lm_eval.utils import make_table
    from peer.export.limited_tokenizer import LimitedTokenizer

    device = select_device(device_name)
    _, header, _ = read_header(folder, run_json(folder))
    try:
        # Without a tokenizer argument, lm-eval would load the folder's untrusted tokenizer in this process.
        with OpenTokenizer(folder) as tokenizer, contextlib.redirect_stdout(sys.stderr):
            results = lm_eval.simple_evaluate(
                model=HFLM(str(folder), tokenizer=LimitedTokenizer(tokenizer), device=str(device)),
                tasks=tasks.split(","),
                limit=limit,
                log_samples=False,
            )
    except LocalFault:
        raise
    except Exception as error:  # of the harness, of a task's data, or of a task's code
        raise LocalFault(
            f"lm-eval cannot measure {tasks}: {type(error).__name__}: {str(error)[:300]}; expected task names "
            "from `lm-eval ls tasks`, or YAML files of tasks; try one task with --limit 1"
        ) from error
    if not as_json:
        print(f"Run         {header.run_id}, versions {'/'.join(map(str, header.versions))}")
        print(make_table(results))
        return 0
    facts = {"schema": 1, "run_id": header.run_id, "versions": header.versions, "tokens": header.tokens}
    print(json.dumps({**facts, "limit": limit, "scores": list(_scores(results))}))
    return 0


def _scores(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for task, values in results["results"].items():
        for key, value in values.items():
            # "acc,none" is a metric and its filter; entries without a comma are not scores.
            metric, comma, name = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            error = values.get(f"{metric}_stderr,{name}")
            yield {
                "task": task,
                "metric": metric if name == "none" else f"{metric} ({name})",
                "value": value,
                "error": error if isinstance(error, float) and math.isfinite(error) else None,
                "num_samples": results["n-samples"].get(task, {}).get("effective", 0),
            }


def _bits_per_byte(loss: float, bytes_per_token: float | None) -> float | None:
    """Convert a loss in nats per token to bits per byte; None if the bytes per token are unknown."""
    if bytes_per_token is None or not math.isfinite(loss):
        return None
    return loss / math.log(2) / bytes_per_token
