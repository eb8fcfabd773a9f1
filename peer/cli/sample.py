"""`peer sample`: lets a model continue a text."""

from __future__ import annotations

from typing import Annotated

import typer

from peer.cli.named_model import BaseFolder, check_choices, named_model
from peer.cli.options import (
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
        float, typer.Option("--temperature", min=0, max=100, metavar="X", help="0 always chooses the likeliest token.")
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
    check_choices(device, base)
    source = named_model(model, checkpoint, named_run(run, run_id, peers), invite, timeout)
    with loading("loading PyTorch"):
        from peer.export.sample import sample_model

    return int(sample_model(source, prompt, max_tokens, temperature, seed, device, base))
