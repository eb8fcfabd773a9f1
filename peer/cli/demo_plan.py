"""Commands that need no run: demo, plan."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dht.ground.errors import UsageFault
from peer.cli.arguments.options import PAGE_PORT, AsJson, LookTimeout, Port, with_choices
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.observe.named_run import named_run, names_run
from peer.observe.run_names import near_run
from peer.optional_libraries import check_page_extra

commands = Commands()


@commands.command(
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


@commands.command(
    cls=with_choices(only=("base_bits", "optimizer_bits")),
    epilog="\b\nExample:\n  peer plan run.toml\n  peer plan run.toml --peers homes.toml",
)
@exits_with_sentence
def plan(
    context: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="A run.toml, a manifest, or a run: its id, page, link or name.", show_default=False
        ),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(
            "--peers", metavar="FILE", help="Households: connections, speeds, a goal; see docs/organiser/planning.md."
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Round times, rates and memory by part, for organisers.")
    ] = False,
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> int:
    """Estimate what a run takes: traffic, memory, disk, time. --full and --peers add round times."""
    if run is None:
        raise UsageFault("Which run? Expected a run file (`peer plan run.toml`), or RUN (its id or page).")
    if not Path(run).exists() and not names_run(run):
        near = near_run(run)
        remedy = f"did you mean {near}?" if near else "check the path."
        raise UsageFault(
            f"{run}: No such file or directory; expected a readable run file or manifest, or RUN (its id, page or "
            f"link); {remedy}"
        )
    from peer.cli.doctor import NO_RUN
    from peer.config.peer_config import load_config

    # Before what counts bytes is loaded, and a live run is asked.
    load_config({"run_id": NO_RUN, "data_dir": ".", **context.obj})
    manifest = _planned(run, timeout)
    from peer.plan.report import run_plan

    return int(run_plan(manifest, peers, context.obj, as_json=as_json, is_full=full or peers is not None))


def _planned(run: str, timeout_seconds: float) -> Any:
    """The manifest of a file, of this machine, or of a live run."""
    if Path(run).exists():
        from peer.plan.plan_source import load_planned_run

        return load_planned_run(Path(run))
    run_id, peers, end = named_run(run, None, None)
    from peer.config.peer_config import load_config
    from peer.observe.kept_manifest import manifest_here
    from peer.observe.run_and_address import checked_target

    config = load_config({"run_id": run_id})
    manifest = manifest_here(config.run_record_path, config.run_id)
    if manifest is not None:
        return manifest
    target = checked_target(run_id, peers, None, None, end)
    from dht.observer.host_choice import choose_backend
    from peer.observe.status import read_manifest

    return read_manifest(target, timeout_seconds, choose_backend(None))


def _program() -> str:
    """How this program was called, for lines that its person may type next."""
    called = Path(sys.argv[0])
    if called.name != "peer":
        return "python -m peer"
    found = shutil.which("peer")
    return "peer" if found is not None and called.exists() and called.samefile(found) else shlex.quote(str(called))
