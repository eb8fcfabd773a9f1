"""The table of all commands of `peer`, in groups, each with one sentence; `peer/cli/NAME.py` defines a command.

`peer --help` uses only this table, so it takes no longer than starting Python.
"""

from __future__ import annotations

import shutil
import textwrap
from typing import Final

MAX_COLUMNS: Final = 100
"""Maximum width of help, because long lines are hard to read."""


GROUPS: Final[dict[str, dict[str, str]]] = {
    "Take part": {
        "join": "Join a run and train.",
        "doctor": "Check whether this machine can join a run.",
        "profile": "Choose what others see about you.",
        "runs": "List the runs on this machine.",
        "forget": "Delete a run from this machine.",
        "stop": "Stop the peer on this machine.",
        "logs": "Print the log of the peer on this machine.",
        "service": "Run a peer as a background service.",
        "open": "Open a run's page in the browser.",
    },
    "Look": {
        "status": "Show the state of a run.",
        "dashboard": "Serve the web page of a run.",
        "sample": "Generate text with a model.",
        "evaluate": "Measure a model's validation loss or scores.",
        "export": "Download the model of a run.",
        "receipts": "Verify signed proofs of contribution.",
    },
    "Run one": {
        "init": "Create a run: owner key and signed manifest.",
        "seed": "Serve a run to newcomers without training.",
        "data": "Prepare a tokenizer and data for a run.",
        "key": "Print this machine's key for a run.",
        "invite": "Invite a person or machine to a private run.",
        "members": "List the members of a run.",
        "note": "Publish a note on the page of your run.",
        "revoke": "Revoke a key or an invite.",
        "manifest": "Show, change, sign and publish a run's manifest.",
    },
    "Try": {
        "demo": "Train with several real peers on this machine.",
        "plan": "Estimate traffic, memory, disk and time of a run.",
    },
}
COMMANDS: Final = {name: what for group in GROUPS.values() for name, what in group.items()}

_OPTIONS: Final = {
    "-h, --help": "Show this message, or the help of a command.",
    "-V, --version": "Show the version and exit.",
    "--install-completion": "Install completion for your shell.",
    "--show-completion": "Print the completion script.",
}


def help_text(columns: int | None = None) -> str:
    """Return the text of `peer --help` for a terminal of `columns` columns; default: the width of this terminal."""
    width = max(50, min(columns or shutil.get_terminal_size().columns, MAX_COLUMNS) - 2)
    lines = ["Usage: peer COMMAND [ARGS]...", ""]
    lines += ["  New here? peer demo", ""]
    lines += textwrap.wrap(
        "Train one model together with volunteers over home internet connections.",
        width,
        initial_indent="  ",
        subsequent_indent="  ",
    )
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *_rows(group, 11, width)]
    lines += ["", "Options:", *_rows(_OPTIONS, 22, width)]
    lines += [
        "",
        "Example:",
        "  peer join https://run.example.org",
        "  peer join RUN --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW...",
    ]
    return "\n".join(lines) + "\n"


def _rows(rows: dict[str, str], name_columns: int, width: int) -> list[str]:
    lines = []
    for name, what in rows.items():
        first, *rest = textwrap.wrap(what, width - name_columns - 2)
        lines.append(f"  {name:<{name_columns}}{first}")
        lines += [" " * (name_columns + 2) + line for line in rest]
    return lines
