"""`peer seed`: serves a run without training."""

from __future__ import annotations

import contextlib
from pathlib import Path

import typer

from peer.cli import options
from peer.cli.join import peer_flags, run_peer
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.console.notices import notice
from peer.user_folders import expanded

app = Commands()


@app.command(
    cls=options.with_choices(is_seed=True),
    epilog="\b\nExample:\n  peer seed --run-id tinybytes.abcdefghij234567abcd \\\n"
    "            --listen /ip4/0.0.0.0/tcp/4001",
)
@exits_with_sentence
def seed(
    context: typer.Context,
    run: options.Run = None,
    invite: options.InviteFile = None,
    config: options.ConfigFile = None,
    as_json: options.AsJson = False,
    plain: options.AsPlain = False,
) -> int:
    """Serve a run without training: newcomers join at this peer's address and download the current state.

    Without RUN, the command seeds the run in --data-dir, in the current folder, or in the only run folder inside it.
    """
    flags = peer_flags(context, run, as_json, plain)
    if (flags.get("run_id"), config, invite) == (None,) * 3:
        flags |= _run_in_folder(flags.get("data_dir"))
    return run_peer(flags, config, invite, seed_only=True)


def _run_in_folder(data_dir: object) -> dict[str, object]:
    """Return run id and data folder of the run in `data_dir`, and print a notice; empty if there is no single run.

    Without `data_dir`, use the run in the working folder, or in the only run folder inside it. Later code checks
    the content of the folder.
    """
    from dht.ground.regular_files import read_regular
    from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES, claimed_run_id
    from peer.config.peer_config import RUN_RECORD_NAME

    found: dict[Path, str] = {}
    with contextlib.suppress(OSError):
        here = Path.cwd()
        within = sorted(one for one in here.iterdir() if one.is_dir()) if data_dir is None else ()
        for folder in (here if data_dir is None else expanded(str(data_dir)), *within):
            with contextlib.suppress(OSError):
                run_id = claimed_run_id(read_regular(folder / RUN_RECORD_NAME, MAX_RUN_RECORD_BYTES))
                found |= {} if run_id is None else {folder: run_id}
    if len(found) != 1:
        return {}
    ((folder, run_id),) = found.items()
    notice(f"Seeding {run_id} from {folder}.")
    return {"run_id": run_id, "data_dir": str(folder)}
