"""`peer join`: joins a run and trains."""

from __future__ import annotations

import os
from collections.abc import Mapping

import typer

from peer.cli import options
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.observe.named_run import with_named_run

app = Commands()


@app.command(
    cls=options.with_choices(),
    epilog="\b\nExample:\n  peer join --device cuda \\\n"
    "    murmuration://tinybytes.abcdefghij234567abcd@203.0.113.5:4001/12D3KooW...",
)
@exits_with_sentence
def join(
    context: typer.Context,
    run: options.Run = None,
    invite: options.InviteFile = None,
    config: options.ConfigFile = None,
    as_json: options.AsJson = False,
    plain: options.AsPlain = False,
) -> int:
    """Join a run and train: find other members, download the current state, and share what this machine learns."""
    return run_peer(peer_flags(context, run, as_json, plain), config, invite, seed_only=False)


def peer_flags(context: typer.Context, run: str | None, as_json: bool, plain: bool) -> dict[str, object]:
    output = options.output_of(as_json, plain)
    return with_named_run(context.obj, run) | {"output": output}


def run_peer(
    flags: Mapping[str, object], config_path: str | None, invite_source: str | None, *, seed_only: bool
) -> int:
    # Checked before slow imports, so that a mistyped flag does not cost seconds.
    config, invite = options.chosen_config(flags, config_path, invite_source)
    if not seed_only and os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "").strip("0"):
        # Only torchrun's first process has a network process and uses the folder; all others follow the first process.
        from peer.join.join import run_rank

        return int(run_rank())
    from peer.data_folder.data_folder_choice import hold_folder
    from peer.data_folder.run_folders import remember_place
    from peer.observe.ended_run import end_signed_here

    end = end_signed_here(config.run_id, config.data_dir)
    if end is not None and end.is_over:
        raise end.refusal()
    files: tuple[str, ...] = ()
    if invite is not None:
        from peer.network.membership.invitation import PASS_NAME

        files = (PASS_NAME,)
    from peer.join.before_start import check_choices, wait_for_members

    check_choices(config, trains=not seed_only)
    what = "peer seed" if seed_only else "peer join"
    config, held = hold_folder(config, what, files)
    try:
        if not seed_only and not config.peers:
            from peer.observe.known_addresses import check_addresses

            check_addresses(config)
        options.use_invite(invite, config)
    except BaseException:  # also Ctrl+C: the folder must always be released
        held.give_up()
        raise
    from peer.panel.terminal import opened_terminal

    # Open the terminal first, so that a child's output on standard error does not disturb the panel.
    with opened_terminal(config, what, held) as terminal:
        if seed_only:
            wait_for_members(config, terminal, trains=False)
            remember_place(config.run_id, config.data_dir)
            from peer.join.seed import run_seed

            return int(run_seed(config, terminal))
        from peer.network.membership.profile_file import unused_key
        from peer.network.process.child_start import early_network_child

        end = end_signed_here(config.run_id, config.data_dir)
        for hint in (None if end is None else end.known, unused_key(config)):
            if hint:
                terminal.mention(hint)
        wait_for_members(config, terminal, trains=True)
        remember_place(config.run_id, config.data_dir)
        with early_network_child() as child:
            from peer.join.join import run_trainer

            return int(run_trainer(config, child, terminal))
