"""All commands of `peer`: what each is for, in which group, and which file has it. Loads nothing but this table.

`peer --help` is written from here alone, so that it costs no more than starting Python.
"""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass
from typing import Final

MAX_COLUMNS: Final = 100
"""Of help: longer lines are harder to read than more of them."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A command as `peer --help` shows it; `module` is the file of `peer.cli` that has it."""

    module: str
    what: str


GROUPS: Final[dict[str, dict[str, Listed]]] = {
    "Take part": {
        "join": Listed("init_join_seed", "Join a run and train."),
        "doctor": Listed("doctor", "Check whether this machine can join a run."),
        "profile": Listed("profile", "Choose what others see about you."),
        "runs": Listed("runs_open_stop_logs_service", "List the runs on this machine."),
        "forget": Listed("runs_open_stop_logs_service", "Delete a run from this machine."),
        "stop": Listed("runs_open_stop_logs_service", "Stop the peer on this machine."),
        "logs": Listed("runs_open_stop_logs_service", "Print the log of the peer on this machine."),
        "service": Listed("runs_open_stop_logs_service", "Run a peer as a background service."),
        "open": Listed("runs_open_stop_logs_service", "Open a run's page in the browser."),
    },
    "Look": {
        "status": Listed("status_and_dashboard", "Show the state of a run."),
        "dashboard": Listed("status_and_dashboard", "Serve the web page of a run."),
        "sample": Listed("export", "Generate text with a model."),
        "evaluate": Listed("export", "Measure a model's validation loss or scores."),
        "export": Listed("export", "Download the model of a run."),
        "receipts": Listed("receipts", "Verify signed proofs of contribution."),
    },
    "Run one": {
        "init": Listed("init_join_seed", "Create a run: owner key and signed manifest."),
        "seed": Listed("init_join_seed", "Serve a run to newcomers without training."),
        "data": Listed("data", "Prepare a tokenizer and data for a run."),
        "key": Listed("owner", "Print this machine's key for a run."),
        "invite": Listed("owner", "Invite a person or machine to a private run."),
        "members": Listed("owner", "List the members of a run."),
        "note": Listed("owner", "Publish a note on the page of your run."),
        "revoke": Listed("owner", "Revoke a key or an invite."),
        "manifest": Listed("owner", "Show, change, sign and publish a run's manifest."),
    },
    "Try": {
        "demo": Listed("demo_plan", "Train with several real peers on this machine."),
        "plan": Listed("demo_plan", "Estimate traffic, memory, disk and time of a run."),
    },
}
COMMANDS: Final = {name: listed for group in GROUPS.values() for name, listed in group.items()}

_OPTIONS: Final = {
    "-h, --help": "Show this message, or the help of a command.",
    "-V, --version": "Show the version and exit.",
    "--install-completion": "Install completion for your shell.",
    "--show-completion": "Print the completion script.",
}


def help_text(columns: int | None = None) -> str:
    """What `peer --help` prints, for a terminal of so many columns; default: this one's."""
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
        lines += ["", f"{title}:", *_rows({name: listed.what for name, listed in group.items()}, 11, width)]
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
