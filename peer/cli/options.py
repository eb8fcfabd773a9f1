"""Flags that several commands share, and what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dht.errors import UsageFault

RunId = Annotated[str | None, typer.Option("--run-id", metavar="RUN", help="The run: NAME.FINGERPRINT.")]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peers", metavar="MULTIADDR...", help="Addresses of members to dial first; several may follow."),
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Where key, checkpoints and logs are kept.")
]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="A peer.toml with the same choices; flags beat it.")
]
IdentityFile = Annotated[
    str | None, typer.Option("--identity", metavar="FILE", help="Key file of this peer; made when it is missing.")
]
InviteFile = Annotated[
    str | None,
    typer.Option("--invite", metavar="FILE", help="An invite to a private run; - reads it from standard input."),
]
Listen = Annotated[
    list[str] | None,
    typer.Option("--listen", metavar="MULTIADDR", help="Where to listen; default: everywhere, any free port."),
]
Announce = Annotated[
    list[str] | None,
    typer.Option("--announce", metavar="MULTIADDR", help="What to tell others, for a forwarded port."),
]
DisplayName = Annotated[
    str | None, typer.Option("--name", metavar="TEXT", help="A name shown to everybody; default: anonymous.")
]
Site = Annotated[
    str | None, typer.Option("--site", metavar="NAME", help="Where this machine is, told to everybody; default: none.")
]
ContributorKey = Annotated[
    str | None,
    typer.Option("--contributor-key", metavar="FILE", help="Key file of the person whose machines share one credit."),
]
JoinTimeout = Annotated[
    float | None,
    typer.Option("--join-timeout", metavar="SECONDS", help="Give up when nobody answers for so long; default 300."),
]
LookTimeout = Annotated[
    float, typer.Option("--timeout", min=0.1, max=3600, metavar="SECONDS", help="How long to look for members.")
]
ModelPath = Annotated[
    Path | None, typer.Option("--model", metavar="FILE", help="A model file that `peer export` wrote.")
]
CheckpointMinutes = Annotated[
    float | None, typer.Option("--checkpoint-minutes", metavar="N", help="Minutes between checkpoints; default 10.")
]
CheckpointsKept = Annotated[
    int | None, typer.Option("--checkpoints-kept", metavar="N", help="Checkpoints that stay on the disk; default 2.")
]
UploadLimit = Annotated[
    float | None,
    typer.Option("--upload-limit-mbit", metavar="MBIT", help="Most Mbit/s to send; default: what the line carries."),
]
DownloadLimit = Annotated[
    float | None,
    typer.Option("--download-limit-mbit", metavar="MBIT", help="Most Mbit/s to take; default: what the line carries."),
]
IpVersionFlag = Annotated[
    str | None, typer.Option("--ip-version", metavar="V", help="Without --listen: auto (both), 4 or 6; default auto.")
]
PortRange = Annotated[
    str | None, typer.Option("--port-range", metavar="A-B", help="Ports that port 0 is taken from; default: any.")
]
MapPorts = Annotated[
    bool | None, typer.Option("--map-ports/--no-map-ports", help="Ask the router to forward the port; default: no.")
]
Relay = Annotated[
    bool | None, typer.Option("--relay/--no-relay", help="Be reached through relays if nobody can dial; default: yes.")
]
RelayForOthers = Annotated[
    bool | None,
    typer.Option("--relay-for-others/--no-relay-for-others", help="Relay for members nobody can dial; default: seeds."),
]
StreamsPerPeer = Annotated[
    int | None,
    typer.Option("--max-streams-per-peer", metavar="N", help="Streams one remote may open; default 64."),
]
MemoryPerPeer = Annotated[
    int | None,
    typer.Option(
        "--max-memory-mb-per-peer", metavar="MB", help="Most kept of what a remote sends; default: as needed."
    ),
]
ServeLimit = Annotated[
    float | None,
    typer.Option("--serve-limit-mbit", metavar="MBIT", help="Most Mbit/s of state for others; default: what is left."),
]
MaxTransfers = Annotated[
    int | None, typer.Option("--max-transfers", metavar="N", help="Pieces of state served at once; default 4.")
]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="DIR", help="Data folder of a peer here, in place of live members."),
]
ModelDevice = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]
AsPlain = Annotated[bool, typer.Option("--plain", help="One plain line per event, also on a terminal.")]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", metavar="N", help="Serve /metrics for Prometheus at this port; 0 takes a free one."),
]
MetricsHost = Annotated[
    str | None, typer.Option("--metrics-host", metavar="ADDRESS", help="Where to serve it; default 127.0.0.1.")
]
Port = Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port of the page; 0 takes a free one.")]


def output_of(as_json: bool, plain: bool) -> str | None:
    """Of what kind the output is; None: as the terminal is."""
    if as_json and plain:
        raise UsageFault("--json and --plain are given together; expected one of them.")
    return "json" if as_json else "plain" if plain else None
