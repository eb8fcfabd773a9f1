"""`peer demo`: trains with a local swarm."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from dht.ground.errors import UsageFault
from peer.cli.options import PAGE_PORT, Port
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.optional_libraries import check_page_extra

app = Commands()


@app.command(
    epilog="\b\nExample:\n  peer demo --peers 4 --minutes 3\n  peer demo --model hf --out ./my-llama",
)
@exits_with_sentence
def demo(
    peers: Annotated[int, typer.Option("--peers", min=2, max=64, metavar="N", help="Peers at the start.")] = 3,
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes",
            min=0.1,
            max=1440,
            metavar="N",
            help="Training time of all peers, at least 40 s; start and measurement come on top.",
        ),
    ] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Summary as one JSON object on the last line.")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard/--no-dashboard", help="Serve the web page during the demo.")
    ] = True,
    port: Port = PAGE_PORT,
    model: Annotated[
        str, typer.Option("--model", metavar="KIND", help="gpt: the built-in model; hf: a small Llama of transformers.")
    ] = "gpt",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="With --model hf: output folder; default: ./demo-model."),
    ] = None,
) -> int:
    """Train with several real peers on this machine. One is killed half-way, and one joins late.

    With --model hf they train a small Llama and its tokenizer. At the end the demo exports the model as a folder that
    transformers can load, and generates some text.
    """
    if model not in ("gpt", "hf"):
        raise UsageFault(f"--model is {model!r}; expected gpt or hf.")
    if out is not None and model == "gpt":
        raise UsageFault(
            "--out is given without --model hf; expected both, because the demo does not keep the built-in model."
        )
    taken_to = (out or Path("demo-model")) if model == "hf" else None
    if taken_to is not None:
        if taken_to.exists():
            raise UsageFault(f"{taken_to} already exists; expected a new folder for the model; give another --out.")
        from peer.export.formats.output_place import check_folder

        check_folder(taken_to, replace=False)
    if dashboard:
        check_page_extra("The demo's page (--no-dashboard skips it)")
    from peer.demo.demo import run_demo

    return int(run_demo(peers, minutes, as_json, port if dashboard else None, taken_to, _program()))


def _program() -> str:
    """How this program was called, for lines that its person may type next."""
    called = Path(sys.argv[0])
    if called.name != "peer":
        return "python -m peer"
    found = shutil.which("peer")
    return "peer" if found is not None and called.exists() and called.samefile(found) else shlex.quote(str(called))
