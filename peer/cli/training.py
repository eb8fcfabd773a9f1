"""Commands that make a run and take part in it: init, join, seed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.exit_codes import reporting
from peer.cli.options import (
    Announce,
    AsJson,
    AsPlain,
    CheckpointMinutes,
    CheckpointsKept,
    ConfigFile,
    ContributorKey,
    DataDir,
    DisplayName,
    DownloadLimit,
    IdentityFile,
    InviteFile,
    IpVersionFlag,
    JoinTimeout,
    Listen,
    MapPorts,
    MaxTransfers,
    MemoryPerPeer,
    MetricsHost,
    MetricsPort,
    Peers,
    PortRange,
    Relay,
    RelayForOthers,
    RunId,
    ServeLimit,
    Site,
    StreamsPerPeer,
    UploadLimit,
    output_of,
)

commands = typer.Typer()


@commands.command(
    short_help="Make a run: owner key and signed manifest.",
    epilog="\b\nExample:\n  peer init tinybytes\n  peer init tinybytes --config run.toml --out ./tinybytes",
)
@reporting
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="1 to 40 of a-z, 0-9 and '-'.", show_default=False)],
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A run.toml with fields of the run manifest.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write; default: the run's data folder.")
    ] = None,
    access: Annotated[
        str | None,
        typer.Option("--access", metavar="MODE", help="open, allowlist or invite; default: as the file says."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Sign again over the run in DIR: same owner key, next revision.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a run: the owner's key and the signed manifest that all its peers follow."""
    from peer.config.data_source import LIBRARY
    from peer.owner.new_run import create_run

    made = create_run(name, config, out, replace=force, access=access, for_strangers=True)
    is_private = made.manifest.access.mode != "open"
    seed_line = f"peer seed --run-id {made.run_id}"
    if out is not None:
        seed_line += f" --data-dir {out}"
    join_line = f"peer join --run-id {made.run_id} --peers ADDRESS"
    if is_private:
        join_line = "peer join --invite FILE"
    if made.manifest.data.source != LIBRARY:
        join_line += f" --data {made.manifest.data.source}PATH"
    if as_json:
        facts = {
            "run_id": made.run_id,
            "manifest_hash": made.manifest.hash.hex(),
            "revision": made.manifest.revision,
            "combine": made.manifest.averaging.combine,
            "owner_key": str(made.owner_key_path),
            "run_record": str(made.run_record_path),
            "seed": seed_line,
            "join": join_line,
        }
        print(json.dumps(facts))
        return
    print(f"Run id      {made.run_id}")
    print(f"Owner key   {made.owner_key_path}  (keep a copy: it alone can change the run)")
    print(f"Manifest    {made.run_record_path}")
    if not is_private:
        combine = made.manifest.averaging.combine
        who = "trusts every member" if combine == "mean" else "resists a quarter of hostile members"
        print(f"Combine     {combine}  ({who}; docs/organiser/open-run.md)")
    print()
    print(f"Start it:   {seed_line}")
    print(f"Join it:    {join_line}")
    if is_private:
        print(f"            FILE is what `peer invite --data-dir {made.folder}` writes, once the seed is up.")
    else:
        print("            ADDRESS is any of those that `peer seed` prints when it is up.")


@commands.command(
    short_help="Join a run and train.",
    epilog="\b\nExample:\n  peer join --run-id tinybytes.abcdefghij234567abcd \\\n"
    "            --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW... --device cuda",
)
@reporting
def join(
    run_id: RunId = None,
    peers: Peers = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps; default auto.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", metavar="N", help="Train on N GPUs (on cpu: N processes) as one peer.")
    ] = None,
    shard: Annotated[
        bool | None, typer.Option("--shard", help="Leave each device a part of the model (FSDP2), not all of it.")
    ] = None,
    offload: Annotated[
        bool | None, typer.Option("--offload", help="Keep reference copies in host memory; with --shard also the rest.")
    ] = None,
    invite: InviteFile = None,
    identity: IdentityFile = None,
    listen: Listen = None,
    announce: Announce = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="SOURCE", help="Own data: text:PATH, tokens:PATH or stdlib:."),
    ] = None,
    data_dir: DataDir = None,
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", metavar="N", help="Leave after this many inner steps.")
    ] = None,
    name: DisplayName = None,
    site: Site = None,
    contributor_key: ContributorKey = None,
    join_timeout: JoinTimeout = None,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="CPU threads of the trainer; default: all.")
    ] = None,
    checkpoint_minutes: CheckpointMinutes = None,
    checkpoints_kept: CheckpointsKept = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    upload_limit: UploadLimit = None,
    download_limit: DownloadLimit = None,
    serve_limit: ServeLimit = None,
    max_transfers: MaxTransfers = None,
    max_streams_per_peer: StreamsPerPeer = None,
    max_memory_mb_per_peer: MemoryPerPeer = None,
    ip_version: IpVersionFlag = None,
    port_range: PortRange = None,
    map_ports: MapPorts = None,
    relay: Relay = None,
    relay_for_others: RelayForOthers = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    plain: AsPlain = False,
) -> int:
    """Join a run and train: find the others, catch up, and share what this machine learns."""
    flags = {
        "run_id": run_id,
        "peers": peers or None,
        "device": device,
        "devices": devices,
        "shard": shard,
        "offload": offload,
        "identity": identity,
        "listen": listen or None,
        "announce": announce or None,
        "data": data,
        "data_dir": data_dir,
        "max_steps": max_steps,
        "name": name,
        "site": site,
        "contributor_key": contributor_key,
        "join_timeout_seconds": join_timeout,
        "threads": threads,
        "checkpoint_minutes": checkpoint_minutes,
        "checkpoints_kept": checkpoints_kept,
        "metrics_port": metrics_port,
        "metrics_host": metrics_host,
        "upload_limit_mbit": upload_limit,
        "download_limit_mbit": download_limit,
        "serve_limit_mbit": serve_limit,
        "max_transfers": max_transfers,
        "max_streams_per_peer": max_streams_per_peer,
        "max_memory_mb_per_peer": max_memory_mb_per_peer,
        "ip_version": ip_version,
        "port_range": port_range,
        "map_ports": map_ports,
        "relay": relay,
        "relay_for_others": relay_for_others,
        "output": output_of(as_json, plain),
    }
    return _run_peer(flags, config, invite, seed_only=False)


@commands.command(
    short_help="Help a run without training.",
    epilog="\b\nExample:\n  peer seed --run-id tinybytes.abcdefghij234567abcd \\\n"
    "            --listen /ip4/0.0.0.0/tcp/4001",
)
@reporting
def seed(
    run_id: RunId = None,
    peers: Peers = None,
    invite: InviteFile = None,
    identity: IdentityFile = None,
    listen: Listen = None,
    announce: Announce = None,
    data_dir: DataDir = None,
    name: DisplayName = None,
    site: Site = None,
    contributor_key: ContributorKey = None,
    join_timeout: JoinTimeout = None,
    checkpoint_minutes: CheckpointMinutes = None,
    checkpoints_kept: CheckpointsKept = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    upload_limit: UploadLimit = None,
    download_limit: DownloadLimit = None,
    serve_limit: ServeLimit = None,
    max_transfers: MaxTransfers = None,
    max_streams_per_peer: StreamsPerPeer = None,
    max_memory_mb_per_peer: MemoryPerPeer = None,
    ip_version: IpVersionFlag = None,
    port_range: PortRange = None,
    map_ports: MapPorts = None,
    relay: Relay = None,
    relay_for_others: RelayForOthers = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    plain: AsPlain = False,
) -> int:
    """Help a run without training: be an address to join at, and serve its state to newcomers."""
    flags = {
        "run_id": run_id,
        "peers": peers or None,
        "identity": identity,
        "listen": listen or None,
        "announce": announce or None,
        "data_dir": data_dir,
        "name": name,
        "site": site,
        "contributor_key": contributor_key,
        "join_timeout_seconds": join_timeout,
        "checkpoint_minutes": checkpoint_minutes,
        "checkpoints_kept": checkpoints_kept,
        "metrics_port": metrics_port,
        "metrics_host": metrics_host,
        "upload_limit_mbit": upload_limit,
        "download_limit_mbit": download_limit,
        "serve_limit_mbit": serve_limit,
        "max_transfers": max_transfers,
        "max_streams_per_peer": max_streams_per_peer,
        "max_memory_mb_per_peer": max_memory_mb_per_peer,
        "ip_version": ip_version,
        "port_range": port_range,
        "map_ports": map_ports,
        "relay": relay,
        "relay_for_others": relay_for_others,
        "output": output_of(as_json, plain),
    }
    return _run_peer(flags, config, invite, seed_only=True)


def _run_peer(
    flags: Mapping[str, object], config_path: str | None, invite_source: str | None, *, seed_only: bool
) -> int:
    from dht.identity.keys import Identity
    from peer.config.peer_config import load_config

    # Checked before anything heavy is imported: a mistyped flag must not cost seconds.
    if invite_source is None:
        config = load_config(flags, config_path)
    else:
        from peer.network.membership.invitation import accept_invite, read_invite, with_invite

        invite = read_invite(invite_source)
        config = load_config(with_invite(flags, invite), config_path)
        accept_invite(invite, Identity.load_or_create(config.identity), config.data_dir)
    if seed_only:
        from peer.join.seed import run_seed

        return int(run_seed(config))
    if os.environ.get("RANK", "0") != "0":
        # Only the first of torchrun's processes has a network side; the others follow it.
        from peer.join.join import run_trainer

        return int(run_trainer(config))
    from peer.network.process.child import early_network_child

    with early_network_child() as child:
        from peer.join.join import run_trainer

        return int(run_trainer(config, child))
