"""`peer forget`: deletes the folders of a run on this machine."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated

import typer

from dht.ground.errors import UsageFault, writing
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.console.word_wrap import print_fitting
from peer.observe.named_run import named_run
from peer.observe.run_names import every_run_here, has_owner_key

app = Commands()


@app.command(epilog="\b\nExample:\n  peer forget tinybytes")
@exits_with_sentence
def forget(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id or name of a run that `peer runs` lists.")],
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
) -> int:
    """Delete the folders of a run on this machine (key, log and checkpoints) and remove it from `peer runs`.

    Folders that you named with --data-dir stay on the disk.
    """
    from peer.data_folder.run_folders import folders_of, forget_run, known_places
    from peer.observe.running_peer import running_in_any

    every = every_run_here()
    run_id = run if run in every else named_run(run, None, None).run_id
    if run_id not in every:
        raise UsageFault(f"{run[:80]!a} is not a run on this machine; expected a run that `peer runs` lists.")
    named = [folder for _, folder in known_places(run_id)]
    folders = [folder for folder in folders_of(run_id) if folder.is_dir() and folder not in named]
    if running := running_in_any([*folders, *named]):
        raise UsageFault(
            f"{running[0].named} takes part in {run_id}; expected no running peer; run `peer stop {run_id}` first."
        )
    if owned := [folder for folder in folders if has_owner_key(folder)]:
        raise UsageFault(
            f"{owned[0]} contains the owner's key of {run_id}, the only key that can change the run; expected a run of "
            "another owner; move that folder away yourself."
        )
    shown = ", ".join(map(str, folders)) or "no folder"
    if not yes:
        if not sys.stdin.isatty():
            raise UsageFault(f"{shown} would be deleted; expected a terminal for the confirmation, or --yes.")
        if not typer.confirm(f"Delete {shown}, with this peer's key and its checkpoints?"):
            print("Nothing was deleted.")
            return 0
    for folder in folders:
        with writing(folder, "restore its permissions"):
            shutil.rmtree(folder)
    forget_run(run_id)
    print_fitting(
        f"Forgot {run_id}. Deleted: {shown}." + (f" Not deleted: {', '.join(map(str, named))}." if named else "")
    )
    return 0
