"""The command that looks at a machine before it joins: doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from peer.cli.exit_codes import reporting
from peer.cli.options import (
    Announce,
    AsJson,
    ConfigFile,
    DataDir,
    DownloadLimit,
    IdentityFile,
    InviteFile,
    Listen,
    LookTimeout,
    Peers,
    RunId,
    UploadLimit,
)
from peer.observe.target import checked_target

commands = typer.Typer()

NO_RUN = "any.aaaaaaaaaaaaaaaaaaaa"
"""Stands for the run id that nobody named; nothing is looked up under it."""


@commands.command(
    short_help="Say whether joining makes sense.",
    epilog="\b\nExample:\n  peer doctor --run-id tinybytes.abcdefghij234567abcd \\\n"
    "              --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW... --listen /ip4/0.0.0.0/tcp/4001",
)
@reporting
def doctor(
    run_id: RunId = None,
    peers: Peers = None,
    invite: InviteFile = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps; default auto.")
    ] = None,
    listen: Listen = None,
    announce: Announce = None,
    upload_limit: UploadLimit = None,
    download_limit: DownloadLimit = None,
    data_dir: DataDir = None,
    identity: IdentityFile = None,
    config: ConfigFile = None,
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> int:
    """Say whether joining makes sense: reachability, rates, clock, memory, disk, versions, and the share of rounds.

    Give it the flags that `peer join` would get, while that peer is not running. Without a run it looks at this machine
    alone. It ends with 0 when joining makes sense, else with what stands in the way: 1 this machine, 3 nobody
    reachable, 4 versions, 5 device.
    """
    from peer.config.manifest import read_toml
    from peer.config.peer_config import load_config, user_data_dir_here

    flags: dict[str, object] = {
        "run_id": run_id,
        "peers": peers or None,
        "device": device,
        "listen": listen or None,
        "announce": announce or None,
        "upload_limit_mbit": upload_limit,
        "download_limit_mbit": download_limit,
        "data_dir": data_dir,
        "identity": identity,
    }
    has_run = run_id is not None or invite is not None or (config is not None and "run_id" in read_toml(config))
    if not has_run:
        flags |= {"run_id": NO_RUN, "data_dir": data_dir or str(user_data_dir_here())}
        checked, target = load_config(flags, config), None
    elif invite is not None:
        from dht.identity.keys import Identity
        from peer.network.membership.invitation import accept_invite, read_invite, with_invite

        read = read_invite(invite)
        checked = load_config(with_invite(flags, read), config)
        # As `peer join` would: with the same key, so that a one-time invite stays good for it.
        accept_invite(read, Identity.load_or_create(checked.identity), checked.data_dir)
        target = checked_target(checked.run_id, list(checked.peers))
    else:
        checked = load_config(flags, config)
        target = checked_target(checked.run_id, list(checked.peers))
    from peer.doctor.doctor import run_doctor

    return run_doctor(checked, target, timeout, as_json)
