"""The model for `peer export`, `peer sample` and `peer evaluate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dht.ground.errors import UsageFault
from peer.cli.options import NO_RUN
from peer.export import model_source
from peer.export.formats.model_header import run_json
from peer.observe.ended_run import NamedRun
from peer.observe.run_and_address import checked_target

BaseFolder = Annotated[
    Path | None,
    typer.Option("--base", metavar="DIR", help="Pretrained weights of an adapter; default: from the hub."),
]


def check_choices(device: str, base: Path | None, data: str | None = None) -> None:
    """Refuse unusable devices and missing files before torch is loaded and members are contacted."""
    from peer.config.peer_config import load_config

    config = load_config({"run_id": NO_RUN, "data_dir": ".", "device": device, "base": base, "data": data})
    if base is not None or data is not None:
        from peer.join.before_start import check_data

        check_data(config)


_SOURCES = {
    True: "--model PATH (a folder that `peer export` wrote), RUN (its id, page or link), or --checkpoint DIR",
    False: "RUN (its id, page or link), or --checkpoint DIR, the data folder of a peer on this machine",
}


def named_model(
    model: Path | None,
    checkpoint: Path | None,
    named: NamedRun,
    invite: str | None,
    timeout_seconds: float,
    *,
    takes_files: bool = True,
) -> model_source.ModelSource:
    """Return the source of the model; refuse several sources together."""
    run_id, peers, end, _ = named
    if model is not None:
        if checkpoint is not None or run_id is not None or peers or invite:
            raise UsageFault("--model is given together with another source; expected --model alone, or RUN.")
        run_json(model)
        return model
    if checkpoint is not None:
        from peer.config.peer_config import load_config

        if peers or invite:
            other = "--peers" if peers else "--invite"
            raise UsageFault(f"--checkpoint and {other} are given together; expected one of them.")
        if not (checkpoint / "run.record").exists():
            raise UsageFault(
                f"{checkpoint} contains no run.record; expected the data folder of a peer of the run; check "
                "--checkpoint."
            )
        return model_source.CheckpointSource(
            load_config({"run_id": run_id or model_source.run_in(checkpoint)}).run_id, checkpoint
        )
    if run_id is None and invite is None:
        raise UsageFault(f"No model is given; expected {_SOURCES[takes_files]}.")
    target = checked_target(run_id, peers, invite, None, end)
    target = replace(target, timeout_seconds=timeout_seconds)
    target.look_first(timeout_seconds)
    return target
