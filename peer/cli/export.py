"""Commands that take the model of a run: export, sample, evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dht.ground.errors import UsageFault
from peer.cli.arguments.options import (
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
from peer.export import model_source
from peer.observe.named_run import NamedRun, named_run
from peer.observe.run_and_address import checked_target

commands = Commands()


BaseFolder = Annotated[
    Path | None,
    typer.Option("--base", metavar="DIR", help="Pretrained weights of an adapter; default: from the hub."),
]


@commands.command(
    epilog="\b\nExample:\n  peer export --run-id tinybytes.abcdefghij234567abcd \\\n"
    "              --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW... \\\n"
    "              --out ./model",
)
@exits_with_sentence
def export(
    run: Run = None,
    run_id: RunId = None,
    peers: Peers = None,
    invite: InviteFile = None,
    checkpoint: Checkpoint = None,
    out: Annotated[Path, typer.Option("--out", metavar="PATH", help="Output folder for the model.")] = Path("model"),
    merge: Annotated[bool, typer.Option("--merge", help="Merge the adapter into its pretrained weights.")] = False,
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="DIR", help="Pretrained weights of the adapter, for --merge."),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            "--push", metavar="ORG/NAME", help="Upload the folder to this repository of the Hugging Face Hub."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export in the same folder.")] = False,
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> int:
    """Download the model of a run into a folder that transformers can load; members confirm it."""
    from peer.export.formats.output_place import check_folder
    from peer.export.hub_push import check_push

    if push is not None:
        check_push(push)
    check_folder(out, replace=force)
    _check_choices("auto", base)
    source = _model_source(None, checkpoint, named_run(run, run_id, peers), invite, timeout, takes_files=False)
    with loading("loading PyTorch"):
        from peer.export.export import export_model

    return int(export_model(source, out, force, as_json, push, merge, base))


@commands.command(
    epilog="\b\nExample:\n  peer sample --model ./model --prompt hello --seed 7",
)
@exits_with_sentence
def sample(
    prompt: Annotated[
        str, typer.Option("--prompt", metavar="TEXT", help="Text that the model continues.", show_default=False)
    ],
    run: Run = None,
    model: ModelPath = None,
    run_id: RunId = None,
    peers: Peers = None,
    invite: InviteFile = None,
    checkpoint: Checkpoint = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, max=10**6, metavar="N", help="Tokens to generate.")
    ] = 200,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, max=100, metavar="X", help="0 always takes the likeliest token.")
    ] = 0.8,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", min=0, max=2**53 - 1, metavar="N", help="The same seed gives the same text (on the CPU)."
        ),
    ] = 0,
    base: BaseFolder = None,
    device: ModelDevice = "auto",
    timeout: LookTimeout = 20.0,
) -> int:
    """Generate text with a model from a folder, a checkpoint or a live run."""
    _check_choices(device, base)
    source = _model_source(model, checkpoint, named_run(run, run_id, peers), invite, timeout)
    with loading("loading PyTorch"):
        from peer.export.sample import sample_model

    return int(sample_model(source, prompt, max_tokens, temperature, seed, device, base))


@commands.command(
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
        raise UsageFault("--limit is given without --tasks; expected both, because it limits the samples of a task.")
    if tasks is not None and (model is None or data is not None or base is not None):
        raise UsageFault(
            "--tasks is given without --model, or with --data or --base; expected an exported folder alone, because a "
            "task brings its own data; run `peer export RUN --merge` if the run trains an adapter, and give --model."
        )
    _check_choices(device, base, data)
    source = _model_source(model, checkpoint, named_run(run, run_id, peers), invite, timeout)
    if tasks is not None and model is not None:
        with loading("loading PyTorch"):
            from peer.export.evaluate import evaluate_tasks
        return int(evaluate_tasks(model, tasks, limit, device, as_json))
    with loading("loading PyTorch"):
        from peer.export.evaluate import evaluate_model
    return int(evaluate_model(source, data, device, as_json, base))


def _check_choices(device: str, base: Path | None, data: str | None = None) -> None:
    """Refuse what no machine has, or this one has not, before torch is loaded and anybody is looked for."""
    from peer.cli.doctor import NO_RUN
    from peer.config.peer_config import load_config

    config = load_config({"run_id": NO_RUN, "data_dir": ".", "device": device, "base": base, "data": data})
    if base is not None or data is not None:
        from peer.join.before_start import check_data

        check_data(config)


_SOURCES = {
    True: "--model PATH (what `peer export` wrote), RUN (its id, page or link), or --checkpoint DIR",
    False: "RUN (its id, page or link), or --checkpoint DIR, the data folder of a peer here",
}


def _model_source(
    model: Path | None,
    checkpoint: Path | None,
    named: NamedRun,
    invite: str | None,
    timeout_seconds: float,
    *,
    takes_files: bool = True,
) -> model_source.ModelSource:
    """The one place a model is taken from."""
    run_id, peers, end = named
    if model is not None:
        if checkpoint is not None or run_id is not None or peers or invite:
            raise UsageFault("--model is given beside another source; expected --model alone, or RUN.")
        model_source.check_folder_source(model)
        return model_source.FolderSource(model)
    if checkpoint is not None:
        from peer.config.peer_config import load_config

        if peers or invite:
            other = "--peers" if peers else "--invite"
            raise UsageFault(f"--checkpoint and {other} are given together; expected one of them.")
        if not (checkpoint / "run.record").exists():
            raise UsageFault(
                f"{checkpoint} holds no run.record; expected the data folder of a peer of this run; check --checkpoint."
            )
        return model_source.CheckpointSource(
            load_config({"run_id": run_id or model_source.run_in(checkpoint)}).run_id, checkpoint
        )
    if run_id is None and invite is None:
        raise UsageFault(f"No model is given; expected {_SOURCES[takes_files]}.")
    target = checked_target(run_id, peers, invite, None, end)
    target.look_first(timeout_seconds)
    return model_source.RunSource(target.run_id, tuple(target.addresses), timeout_seconds, target.observer_folder)
