"""`peer receipts verify`: checks a file of signed commits and prints what it proves."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from averaging.signing.commit_credit import MachineTotal, counted, missing_versions, totals
from averaging.signing.receipt_file import MAX_LINE_BYTES, ReceiptFault, Receipts, read_receipts
from dht.ground.errors import LocalFault, UsageFault, reading
from dht.ground.host import PeerId
from dht.ground.quantities import count_text, plural
from dht.ground.regular_files import open_regular
from dht.identity.keys import Identity, split_run_id, verify
from dht.identity.speakable import speakable_name
from peer.config.peer_config import IDENTITY_NAME
from peer.console.plain_console import PIPE_COLUMNS, console_of_output
from peer.data_folder.run_folders import folders_of


def verify_receipts(path: Path, run_id: str | None, as_json: bool) -> int:
    """Check every line of `path` and print the totals; return the exit code.

    Raises:
        UsageFault: the file cannot be read, or `run_id` is invalid.
        LocalFault: a line was changed, is of a different run, or is not a receipt; the message gives line and
            reason.
    """
    if run_id:
        split_run_id(run_id)
    try:
        with (
            reading(path, "a person's receipts, as downloaded from a run's page; check the path"),
            io.TextIOWrapper(open_regular(path), encoding="utf-8") as file,
        ):
            receipts = read_receipts(_lines(file), verify, run_id or "")
    except UnicodeDecodeError as error:
        raise LocalFault(f"{path} is not text; expected JSON lines, as downloaded from a run's page") from error
    except ReceiptFault as fault:
        raise LocalFault(f"{path} proves nothing: {fault}") from fault
    rounds = counted(receipts.rounds)
    rows = totals(rounds)
    if as_json:
        print(json.dumps(_facts(receipts, rows, len(rounds)), indent=2))
    else:
        _print(receipts, rows, len(rounds))
    return 0


def _lines(file: Any) -> Iterator[str]:
    """Yield the lines; a line that is too long is truncated, and later refused, before it fills the memory."""
    while line := file.readline(MAX_LINE_BYTES + 2):
        yield line


def _facts(receipts: Receipts, rows: Sequence[MachineTotal], num_counted: int) -> dict[str, Any]:
    gaps = missing_versions(receipts.rounds)
    return {
        "run_id": receipts.run_id,
        "num_parameters": receipts.num_parameters,
        "receipts": len(receipts.rounds),
        "rounds_counted": num_counted,
        "versions_missing": {str(fragment): sum(map(len, parts)) for fragment, parts in gaps.items()},
        "machines": [
            {
                "peer_id": row.peer_id,
                "tokens_witnessed": row.milli_witnessed / 1000,
                "tokens_reported": row.milli_reported / 1000,
                "milli_tokens_witnessed": row.milli_witnessed,
                "milli_tokens_reported": row.milli_reported,
                "rounds": row.rounds,
                "rounds_missed": row.rounds_missed,
            }
            for row in rows
        ],
    }


def _print(receipts: Receipts, rows: Sequence[MachineTotal], num_counted: int) -> None:
    console = console_of_output()
    own = _own_peers(receipts.run_id)
    names = {row.peer_id: speakable_name(row.peer_id) + (" (yours)" if row.peer_id in own else "") for row in rows}
    table = Table(box=None, pad_edge=False)
    for title in ("name", "machine", "confirmed", "reported", "rounds", "missed"):
        table.add_column(title, justify="left" if title in ("name", "machine") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            names[row.peer_id],
            row.peer_id,
            count_text(row.milli_witnessed / 1000),
            count_text(row.milli_reported / 1000),
            str(row.rounds),
            str(row.rounds_missed),
        )
    console.print(f"All signatures are valid: {plural(len(receipts.rounds), 'receipt')} of run {receipts.run_id}")
    # A receipt does not state the unit of its tokens.
    console.print("Work is counted in tokens.")
    if console.measure(table, options=console.options.update(width=PIPE_COLUMNS)).maximum <= console.width:
        console.print(table)
    else:
        # A key truncated by the table could not be copied.
        for row in rows:
            confirmed, reported = (count_text(milli / 1000) for milli in (row.milli_witnessed, row.milli_reported))
            console.print(row.peer_id, soft_wrap=True)
            rounds = f"{row.rounds} rounds, {row.rounds_missed} missed"
            console.print(f"  {names[row.peer_id]}")
            console.print(f"  {confirmed} confirmed of {reported} reported, {rounds}")
    num_missing = sum(len(part) for parts in missing_versions(receipts.rounds).values() for part in parts)
    num_left_out = len(receipts.rounds) - num_counted
    console.tell(_closing(num_counted, num_left_out, num_missing), highlight=False)


def _own_peers(run_id: str) -> set[PeerId]:
    """Return the peers whose keys are in this user's folders of the run; unreadable keys are left out."""
    found = set()
    with contextlib.suppress(UsageFault):
        for folder in folders_of(run_id):
            with contextlib.suppress(LocalFault):
                found.add(Identity.load(folder / IDENTITY_NAME).peer_id)
    return found


def _closing(num_counted: int, num_left_out: int, num_missing: int) -> str:
    """Return sentences about what was counted, what was not, and what the file does not cover."""
    sentences = [f"{plural(num_counted, 'round')} counted."]
    if num_left_out:
        sentences.append(f"Left out: {num_left_out}, duplicates or rounds of a side history with less work.")
    else:
        sentences.append("Nothing is counted twice.")
    if num_missing:
        sentences.append(f"{plural(num_missing, 'round')} of the run in between did not involve these machines.")
    return " ".join(sentences)
