"""`peer doctor`: checks a machine before it joins a run."""

from __future__ import annotations

import typer

from peer.cli.options import (
    NO_RUN,
    AsJson,
    ConfigFile,
    InviteFile,
    LookTimeout,
    Run,
    chosen_config,
    use_invite,
    with_choices,
)
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.console.progress import loading
from peer.observe.named_run import to_name_again, with_named_run
from peer.observe.run_and_address import checked_target

app = Commands()

LOOKED_AT = (
    *("run_id", "peers", "device", "listen", "announce", "data", "base", "base_bits", "optimizer_bits"),
    *("upload_limit_mbit", "download_limit_mbit", "data_dir", "identity"),
)
"""Fields of `PeerConfig` that affect the checks."""


@app.command(
    cls=with_choices(only=LOOKED_AT),
    epilog="\b\nExample:\n  peer doctor --run-id tinybytes.abcdefghij234567abcd \\\n"
    "              --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW... --listen /ip4/0.0.0.0/tcp/4001",
)
@exits_with_sentence
def doctor(
    context: typer.Context,
    run: Run = None,
    invite: InviteFile = None,
    config: ConfigFile = None,
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> int:
    """Check whether this machine can join a run: reachability, rates, clock, memory, disk and versions.

    Use the flags that you would give to `peer join`, while that peer is not running. Without RUN, the command checks
    only this machine. Exit codes: 0 no problem, 1 a problem of this machine, 2 a wrong flag, 3 no member reachable, 4 a
    problem of the run, 5 a problem of the device.
    """
    from peer.config.validation_sentences import read_toml
    from peer.user_folders import user_data_dir_here

    flags = with_named_run(context.obj, run)
    is_named = (flags["run_id"], invite) != (None, None)
    has_run = is_named or (config is not None and "run_id" in read_toml(config))
    if not has_run:
        flags |= {"run_id": NO_RUN, "data_dir": flags["data_dir"] or str(user_data_dir_here())}
    # With the key that `peer join` uses, so that a one-time invite stays valid for that key.
    checked, its_invite = chosen_config(flags, config, invite)
    use_invite(its_invite, checked)
    target = checked_target(checked.run_id, list(checked.peers)) if has_run else None
    with loading("loading the device and network checks"):
        from peer.doctor.doctor import run_doctor
        from peer.panel.return_command import same_again

    given = to_name_again(run or context.obj.get("run_id"), checked.run_id, checked.peers, invite)
    return run_doctor(checked, target, timeout, as_json, same_again(checked, "peer join", given))
