"""`peer evaluate`: measures a model."""

from __future__ import annotations

from typing import Annotated

import typer

from dht.ground.errors import UsageFault
from peer.cli.named_model import BaseFolder, check_choices, named_model
from peer.cli.options import (
    AsJson,
    Checkpoint,
    InviteFile,
    LookTimeout,
    ModelDevice,
    ModelPath,
    Peers,
    Run,
    RunId,
)
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.console.progress import loading
from peer.observe.named_run import named_run

app = Commands()


@app.command(
    epilog="\b\nExample:\n  peer evaluate --model ./model --json",
)
@exits_with_sentence
def evaluate(
    run: Run = None,
    model: ModelPath = None,
    run_id: RunId = None,
    peers: Peers = None,
    invite: InviteFile = None,
    checkpoint: Checkpoint = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="SOURCE", help="Data to measure on: text:PATH, tokens:PATH or stdlib:."),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            metavar="TASKS",
            help="Measure scores in these tasks of lm-eval instead of the loss: names or YAML files, separated by "
            "commas. Needs --model.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Samples of each task; default: all.")
    ] = None,
    base: BaseFolder = None,
    device: ModelDevice = "auto",
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> int:
    """Measure the validation loss or the scores of a model from a folder, a checkpoint or a live run."""
    if limit is not None and tasks is None:
        raise UsageFault("--limit is given without --tasks; expected both, because --limit counts samples of a task.")
    if tasks is not None and (model is None or data is not None or base is not None):
        raise UsageFault(
            "--tasks is given without --model, or with --data or --base; expected only --model with an exported "
            "folder, because each task has its own data; if the run trains an adapter, run `peer export RUN --merge` "
            "first."
        )
    check_choices(device, base, data)
    source = named_model(model, checkpoint, named_run(run, run_id, peers), invite, timeout)
    if tasks is not None and model is not None:
        with loading("loading PyTorch"):
            from peer.export.evaluate import evaluate_tasks
        return int(evaluate_tasks(model, tasks, limit, device, as_json))
    with loading("loading PyTorch"):
        from peer.export.evaluate import evaluate_model
    return int(evaluate_model(source, data, device, as_json, base))
