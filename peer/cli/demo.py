"""`peer demo`: trains with a local swarm."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.options import PAGE_PORT, Port
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.optional_libraries import check_page_extra

app = Commands()


@app.command(
    epilog="\b\nExample:\n  peer demo --peers 4 --minutes 3",
)
@exits_with_sentence
def demo(
    peers: Annotated[
        int, typer.Option("--peers", min=2, max=64, metavar="N", help="Number of peers at the start.")
    ] = 3,
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes",
            min=0.1,
            max=1440,
            metavar="N",
            help="Training time of all peers, at least 40 s; their start takes additional time.",
        ),
    ] = 2.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object on the last line.")
    ] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard/--no-dashboard", help="Serve the web page during the demo.")
    ] = True,
    port: Port = PAGE_PORT,
) -> int:
    """Train with several real peers on this machine. One peer is killed half-way, and another peer joins late."""
    if dashboard:
        check_page_extra("The demo's page (--no-dashboard skips it)")
    from peer.demo.demo import run_demo

    return int(run_demo(peers, minutes, as_json, port if dashboard else None, _program()))


def _program() -> str:
    """Return the command that started this program, for commands that the user can run next."""
    called = Path(sys.argv[0])
    if called.name != "peer":
        return "python -m peer"
    found = shutil.which("peer")
    return "peer" if found is not None and called.exists() and called.samefile(found) else shlex.quote(str(called))
