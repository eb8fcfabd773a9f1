"""`peer receipts`: verifies signed proofs of contribution."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peer.cli.options import AsJson, RunId
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands

app = Commands(
    help="Verify signed proofs of contribution, which a run's page offers for download.",
    epilog="\b\nExample:\n  peer receipts verify proof.jsonl",
    no_args_is_help=True,
)


@app.callback()
def _receipts() -> None:
    """Keep `verify` a subcommand; typer would otherwise merge a single command into its group."""


@app.command(
    short_help="Verify a file of receipts.",
    epilog="\b\nExample:\n  peer receipts verify proof.jsonl --run-id tinybytes.abcdefghij234567abcd",
)
@exits_with_sentence
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines, one signed commit each.")],
    run_id: RunId = None,
    as_json: AsJson = False,
) -> int:
    """Verify every signature in FILE and add up what each machine contributed."""
    from peer.observe.receipts_verify import verify_receipts

    return verify_receipts(file, run_id, as_json)
