"""The `peer` command: arguments in, exit code out.

Everything heavy (torch, hivemind, aiohttp, pydantic) is imported by the command that needs it, so that help and
a mistyped flag are answered at once.

Exit codes: 0 well; 1 a fault of this machine or a bug; 2 a wrong flag, file or value; 3 nobody reachable;
4 incompatible; 5 device; 130 interrupted with Ctrl+C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from peer.cli import data, doctor, export, owner, profile, receipts, training, trying, watching
from peer.cli.options import spread_peers
from peer.version import SOFTWARE

app = typer.Typer(
    name="peer",
    help="Train one model together with volunteers over home internet lines.",
    epilog="\b\nExample:\n  peer join --run-id RUN --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW...",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for _module in (*(training, owner, data, doctor, watching, export, receipts, profile, trying),):
    app.add_typer(_module.commands)


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(SOFTWARE)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return its exit code; prints, never raises."""
    command = typer.main.get_command(app)
    try:
        command.main(spread_peers(arguments), prog_name="peer")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
