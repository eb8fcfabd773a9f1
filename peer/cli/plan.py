"""`peer plan`: estimates the traffic, memory, disk space and time that a run needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dht.ground.errors import UsageFault
from peer.cli.options import NO_RUN, AsJson, LookTimeout, with_choices
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.observe.named_run import named_run, names_run
from peer.observe.run_names import near_run

app = Commands()


@app.command(
    cls=with_choices(only=("base_bits", "optimizer_bits")),
    epilog="\b\nExample:\n  peer plan run.toml\n  peer plan run.toml --full",
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
    full: Annotated[
        bool, typer.Option("--full", help="Also show round times, rates and memory by part, for organisers.")
    ] = False,
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> int:
    """Estimate the traffic, memory, disk space and time that a run needs. --full adds round times."""
    if run is None:
        raise UsageFault("Which run? Expected a run file (`peer plan run.toml`), or RUN (its id or page).")
    if not Path(run).exists() and not names_run(run):
        near = near_run(run)
        remedy = f"did you mean {near}?" if near else "check the path."
        raise UsageFault(
            f"{run}: No such file or directory; expected a readable run file or manifest, or RUN (its id, page or "
            f"link); {remedy}"
        )
    from peer.config.peer_config import load_config

    # Checked before the slow imports, and before a live run is contacted.
    config = load_config({"run_id": NO_RUN, "data_dir": ".", **context.obj})
    manifest = _planned(run, timeout)
    from peer.plan.report import run_plan

    return int(run_plan(manifest, config.base_bits, config.optimizer_bits, as_json=as_json, is_full=full))


def _planned(run: str, timeout_seconds: float) -> Any:
    """Return the manifest from a file, from this machine, or from a live run."""
    if Path(run).exists():
        from peer.plan.plan_source import load_planned_run

        return load_planned_run(Path(run))
    run_id, peers, end, _ = named_run(run, None, None)
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
