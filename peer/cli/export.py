"""`peer export`: writes the model of a run as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peer.cli.named_model import check_choices, named_model
from peer.cli.options import (
    AsJson,
    Checkpoint,
    InviteFile,
    LookTimeout,
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
    """Download the model of a run, check it with several members, and write a folder that transformers can load."""
    from peer.export.formats.output_place import check_folder
    from peer.export.hub_push import check_push

    if push is not None:
        check_push(push)
    check_folder(out, replace=force)
    check_choices("auto", base)
    source = named_model(None, checkpoint, named_run(run, run_id, peers), invite, timeout, takes_files=False)
    with loading("loading PyTorch"):
        from peer.export.export import export_model

    return int(export_model(source, out, force, as_json, push, merge, base))
