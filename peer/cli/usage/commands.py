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
        "doctor": Listed("doctor", "Say whether joining makes sense."),
        "profile": Listed("profile", "Choose what is shown about you."),
        "runs": Listed("runs_open_stop_logs_service", "List the runs that you take part in here."),
        "forget": Listed("runs_open_stop_logs_service", "Take a run off this machine."),
        "stop": Listed("runs_open_stop_logs_service", "End the peer that runs on this machine."),
        "logs": Listed("runs_open_stop_logs_service", "Print what that peer has done."),
        "service": Listed("runs_open_stop_logs_service", "Keep a peer running without a terminal."),
        "open": Listed("runs_open_stop_logs_service", "Open the page of a run in the browser."),
    },
    "Look": {
        "status": Listed("status_and_dashboard", "Show a run from outside."),
        "dashboard": Listed("status_and_dashboard", "Serve a web page about a run."),
        "sample": Listed("export", "Let a model say something."),
        "evaluate": Listed("export", "Measure the validation loss of a model."),
        "export": Listed("export", "Take the model of a run home."),
        "receipts": Listed("receipts", "Check proofs of who contributed."),
    },
    "Run one": {
        "init": Listed("init_join_seed", "Make a run: owner key and signed manifest."),
        "seed": Listed("init_join_seed", "Help a run without training."),
        "data": Listed("data", "Make text ready for a run."),
        "key": Listed("owner", "Print this machine's key for a run."),
        "invite": Listed("owner", "Let somebody into a private run."),
        "members": Listed("owner", "List who may take part in a run, and who does."),
        "note": Listed("owner", "Write a note beside the curve of your run."),
        "revoke": Listed("owner", "Take a key or an invite back."),
        "manifest": Listed("owner", "Show, change, sign and publish a run's manifest."),
    },
    "Try": {
        "demo": Listed("demo_plan", "Train with a local swarm of real peers."),
        "plan": Listed("demo_plan", "Say what a run will ask of a home."),
    },
}
COMMANDS: Final = {name: listed for group in GROUPS.values() for name, listed in group.items()}

_OPTIONS: Final = {
    "-h, --help": "Show this, or what a command takes; `peer help COMMAND` does, too.",
    "-V, --version": "Show the version and exit.",
    "--install-completion": "Let the shell complete commands and flags.",
    "--show-completion": "Print what that installs.",
}


def help_text(columns: int | None = None) -> str:
    """What `peer --help` prints, for a terminal of so many columns; default: this one's."""
    width = max(50, min(columns or shutil.get_terminal_size().columns, MAX_COLUMNS) - 2)
    lines = ["Usage: peer COMMAND [ARGS]...", ""]
    lines += ["  New here? peer demo", ""]
    lines += textwrap.wrap(
        "Train one model together with volunteers over home internet lines.",
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
