"""`peer init`: creates a run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from dht.ground.errors import Incompatible, UsageFault
from peer.cli import options
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.console.notices import notice
from peer.console.progress import loading, tell_progress
from peer.observe.run_names import owned_folders, runs_here
from peer.user_folders import check_out

app = Commands()


@app.command(
    epilog="\b\nExample:\n  peer init --example\n  peer init tinybytes\n  peer init tinybytes --config run.toml "
    "--out ./tinybytes\n"
    "  peer init qwen --model ./qwen3-0.6b --config run.toml",
)
@exits_with_sentence
def init(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the run: 1 to 40 of a-z, 0-9 and '-'.", show_default=False),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A run.toml with fields of the manifest.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output folder; default: the run's data folder.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Train a Hugging Face model: its config.json, a folder with it, or org/name@REVISION.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="TASK", help="Task of --model, such as causal-lm; default: from its config."),
    ] = None,
    lora: Annotated[
        int | None,
        typer.Option("--lora", min=1, max=1024, metavar="RANK", help="Train a LoRA adapter for --model's weights."),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            "--targets",
            metavar="NAMES",
            help="Layers with an adapter, such as q_proj,v_proj; default: all linear layers.",
        ),
    ] = None,
    freeze: Annotated[
        str | None,
        typer.Option("--freeze", metavar="NAMES", help="Parts of --model to freeze, such as model.embed_tokens."),
    ] = None,
    access: Annotated[
        str | None,
        typer.Option("--access", metavar="MODE", help="open, allowlist or invite; default: from the run.toml."),
    ] = None,
    page: Annotated[
        str | None,
        typer.Option("--page", metavar="URL", help="Address of the run's page, for `peer join URL`."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="FILE", help="A file that members send to newcomers; repeat for several."),
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print a commented run.toml to start from, and exit.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Sign your run NAME (or the run in DIR) again: same owner key, next revision."),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Create a run: the owner's key and the signed manifest that all its peers follow."""
    if example:
        from peer.owner.example_run import EXAMPLE

        print(EXAMPLE, end="")
        return
    if name is None:
        raise UsageFault(
            "NAME is missing; expected `peer init NAME`, with 1 to 40 of a-z, 0-9 and '-'; `peer init --example` "
            "prints a run.toml to start from."
        )
    same_name = [one for one in runs_here() if one.partition(".")[0] == name]
    own = [folder for one in same_name for folder in owned_folders(one)]
    if out is None and own and force and len(own) == 1:
        out = own[0]
    elif out is None and own:
        raise UsageFault(
            f"You already own a run with the name {name}: {', '.join(map(str, own))}; expected a new name; choose "
            "another name, give --out DIR to create an additional run with this name, or give --force and that folder "
            "as --out to sign its manifest again."
        )
    if out is not None:
        check_out(out)
    from peer.data_folder.run_folders import remember_place
    from peer.owner.new_run import create_run

    for flag, value, needed, its_value in (
        *(("--task", task, "--model", model), ("--lora", lora, "--model", model)),
        *(("--targets", targets, "--lora", lora), ("--freeze", freeze, "--model", model)),
    ):
        if value is not None and its_value is None:
            raise UsageFault(f"{flag} is given without {needed}; expected both; add {needed}.")
    described = None
    trial_notes: list[str] = []
    if model is not None:
        if not Path(model).exists() and ("/" not in model or model.startswith((".", "/", "~"))):
            raise UsageFault(
                f"{model}: No such file or directory; expected the config.json of a Hugging Face model, a folder that "
                "contains it, or org/name@REVISION; check --model."
            )
        with loading("loading the model libraries"):
            from peer.trainer.hf.manifest_from_config import describe_model

        chosen = None if lora is None else (lora, _names(targets))
        with _of_arguments():
            described = describe_model(model, task, chosen, _names(freeze), tell_progress)
    with _of_arguments():
        made = create_run(
            *(name, config, out),
            replace=force,
            access=access,
            page=page,
            for_strangers=True,
            files=file or (),
            model=described,
            built=None if model is None else partial(_built, Path(model)),
            usable_context=None if model is None else partial(_usable_context, trial_notes),
        )
    remember_place(made.run_id, made.folder)
    for other in same_name:
        if other != made.run_id:
            notice(f"{other} on this machine has the same name, so commands need the complete id of each run.")
    is_private = made.manifest.access.mode != "open"
    seed_line = f"peer seed {made.run_id}"
    if out is not None:
        seed_line += f" --data-dir {out}"
    page = made.manifest.page_address
    join_line = f"peer join {page or f'murmuration://{made.run_id}@HOST:PORT/PEERID'}"
    if is_private:
        join_line = "peer join --invite FILE"
    join_line += made.manifest.flags_to_bring
    if as_json:
        facts = {
            "run_id": made.run_id,
            "manifest_hash": made.manifest.hash.hex(),
            "revision": made.manifest.revision,
            "combine": made.manifest.averaging.combine,
            "owner_key": str(made.owner_key_path),
            "run_record": str(made.run_record_path),
            "files": [{"name": one.name, "bytes": one.bytes, "digest": one.digest} for one in made.manifest.files],
            "seed": seed_line,
            "join": join_line,
        }
        print(json.dumps(facts))
        return
    print(f"Run id      {made.run_id}")
    if described is not None:
        print(f"Model       {described.what}, context {made.manifest.model.context}")
        for note in (*described.notes, *trial_notes):
            print(f"Note        {note}")
    print(f"Owner key   {made.owner_key_path}  (keep a copy: only this key can change the run)")
    print(f"Manifest    {made.run_record_path}")
    for one in made.manifest.files:
        print(f"File        {one.name}, {one.bytes} bytes  (members send it to newcomers)")
    if not is_private:
        combine = made.manifest.averaging.combine
        who = "trusts every member" if combine == "mean" else "resists a quarter of hostile members"
        print(f"Combine     {combine}  ({who}; docs/organiser/open-run.md)")
    print(f"Rate        {made.manifest.training.rate_in_words}  (docs/organiser/schedule.md)")
    print()
    print(f"Start it:   {seed_line}")
    print(f"Join it:    {join_line}")
    if is_private:
        print(f"            `peer invite --data-dir {made.folder}` writes FILE, once the seed runs.")
    elif page is None:
        print("            `peer seed` prints this line with its address once it runs.")
    else:
        print(f"            The page is available once `peer dashboard` serves it at {page}.")


@contextlib.contextmanager
def _of_arguments() -> Iterator[None]:
    """Turn an Incompatible error into a UsageFault, because there is no run yet and only a flag can be wrong.

    Raises:
        UsageFault: the block raised Incompatible.
    """
    try:
        yield
    except Incompatible as fault:
        raise UsageFault(str(fault)) from fault


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _built(folder: Path, manifest: Any) -> Any:
    """Return the module that a manifest describes; `folder` contains its pretrained weights, if there are any."""
    from peer.trainer.hf.base_weights import find_base
    from peer.trainer.hf.run_model import build_run_architecture

    tell_progress("building the model, to sign its frozen parameters")
    init = manifest.model.init
    return build_run_architecture(manifest, find_base(manifest, folder if init and init.source == "folder" else None))


def _usable_context(notes: list[str], manifest: Any) -> int:
    """Return the longest context with which a manifest's model can be trained; add advice for its owner to `notes`."""
    from peer.memory.least_memory import free_memory_bytes
    from peer.trainer.hf.trial import try_model

    tell_progress("trying a training step with the full context")
    context, advice = try_model(manifest, free_memory_bytes())
    notes.extend(advice)
    return context
