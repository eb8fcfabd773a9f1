"""`peer logs`: prints the log of the peer on this machine."""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from dht.ground.errors import EXIT_INTERRUPTED, LocalFault, UsageFault
from dht.ground.quantities import clock_text, day_text
from peer.cli.options import DataDir, Run, RunId
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.console.notices import notice
from peer.console.plain_output import reader_has_left
from peer.console.word_wrap import print_fitting
from peer.observe.named_run import named_run

app = Commands()


LOOK_SECONDS = 0.5
"""Seconds between two reads of a log."""


MAX_LINES = 100_000


@app.command(epilog="\b\nExample:\n  peer logs -f\n  peer logs tinybytes --lines 200")
@exits_with_sentence
def logs(
    run: Run = None,
    run_id: RunId = None,
    data_dir: DataDir = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=MAX_LINES, metavar="N", help="Number of events.")
    ] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events until Ctrl+C.")] = False,
) -> int:
    """Print the log of the peer on this machine: one sentence for each event, newest last.

    If several peers run, the command shows the logs of all, and first explains the prefix of each line.
    """
    from peer.data_folder.folder_lock import told_holder_of
    from peer.events.log_tail import LogReader
    from peer.observe.own_runs import own_folders

    named = named_run(run, run_id, None)[0]
    folders = [one for one in own_folders(named, data_dir) if (one / "events.jsonl").exists()]
    if not folders:
        what = f"of {named} " if named else ""
        raise UsageFault(
            f"No peer {what}has written a log {f'in {data_dir}' if data_dir else 'on this machine'}; expected a run "
            "with a peer that runs or ran here; `peer runs` lists these runs."
        )
    running = {folder: words for folder in folders if len(folders) > 1 and (words := told_holder_of(folder))}
    if len(folders) > 1 and not running:
        newest = max(folders, key=lambda one: (one / "events.jsonl").stat().st_mtime)
        where = shlex.join(["--data-dir", str(newest)])
        notice(f"Showing the newest of {len(folders)} logs on this machine: {where}")
        folders = [newest]
    labels = _labels(list(running) or folders)
    if len(labels) > 1:
        for folder, label in labels.items():
            notice(f"{label}: {running[folder]}, {folder}")
    try:
        reader = LogReader([folder / "events.jsonl" for folder in labels])
        _print(reader.last(lines), labels)
        while follow:
            if reader_has_left(sys.stdout):
                raise BrokenPipeError
            time.sleep(LOOK_SECONDS)
            _print(reader.newer(), labels)
    except BrokenPipeError:
        raise  # the reader has closed the pipe
    except OSError as error:
        raise LocalFault(
            f"{error.filename} cannot be read ({error.strerror or error}); expected a log that you may read"
        ) from error
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _labels(folders: list[Path]) -> dict[Path, str]:
    """Return the prefix for the lines of each folder: its run's name, or its path if two names are the same."""
    short = {folder: _label(folder.name) for folder in folders}
    is_clear = len(set(short.values())) == len(folders)
    return short if is_clear else {folder: str(folder) for folder in folders}


def _label(folder_name: str) -> str:
    """Return ``tinybytes`` for a run's default folder, ``tinybytes (2)`` for its second, ``mine/`` for others."""
    usual = re.fullmatch(r"(.+)\.[a-z2-7]{20}(?:-([1-9][0-9]?))?", folder_name)
    if usual is None:
        return f"{folder_name}/"
    name, number = usual.groups()
    return f"{name} ({number})" if number else str(name)


def _print(events: Any, labels: dict[Path, str]) -> None:
    for path, event in events:
        clock = f"{day_text(event.at)}, {clock_text(event.at)}"
        label = f"{labels[path.parent]}  " if len(labels) > 1 else ""
        print_fitting(f"{clock}  {label}{event.sentence()}")
