"""Commands that look at a run from outside: status, dashboard."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dht.host_backend import HostBackend, choose_backend
from peer.cli_options import AsJson, LookTimeout, Peers, Port, RunId, checked_target
from peer.outcome import reporting

commands = typer.Typer()

Backend = Annotated[
    str | None,
    typer.Option(
        "--host-backend", metavar="NAME", help="libp2p or p2pd; default: libp2p, which needs no daemon, if installed."
    ),
]


@commands.command(
    short_help="Show a run from outside.",
    epilog="\b\nExample:\n  peer status --run-id tinybytes.abcdefghij234567abcd \\\n"
    "              --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW...",
)
@reporting
def status(
    run_id: RunId = None,
    peers: Peers = None,
    timeout: LookTimeout = 20.0,
    host_backend: Backend = None,
    as_json: AsJson = False,
) -> int:
    """Show a run from outside: its peers, versions, rates and loss."""
    known, addresses = checked_target(run_id, peers)
    backend = _chosen(host_backend)
    from peer.status import show_status

    return show_status(known, addresses, as_json, timeout, backend)


@commands.command(
    short_help="Serve a web page about a run.",
    epilog="\b\nExample:\n  peer dashboard --run-id tinybytes.abcdefghij234567abcd \\\n"
    "                 --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW... --port 8470",
)
@reporting
def dashboard(
    run_id: RunId = None,
    peers: Peers = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to serve; 0.0.0.0 shows it to everybody.")
    ] = "127.0.0.1",
    port: Port = 8470,
    host_backend: Backend = None,
) -> int:
    """Serve a web page that shows who contributes to a run and how it learns."""
    known, addresses = checked_target(run_id, peers)
    backend = _chosen(host_backend)
    from dashboard.app import serve_dashboard
    from peer.observing import open_commits

    return serve_dashboard(known, addresses, host, port, open_commits=open_commits, backend=backend)


def _chosen(asked: str | None) -> HostBackend:
    backend, remark = choose_backend(asked)
    if remark:
        print(remark, file=sys.stderr)
    return backend
