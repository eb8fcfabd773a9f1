"""Commands about the runs of this machine: runs, open, stop, logs, service."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import sysconfig
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dht.ground.errors import EXIT_INTERRUPTED, LocalFault, UsageFault, writing
from dht.ground.quantities import clock_text, day_text
from peer.cli.arguments.options import PAGE_PORT, AsJson, DataDir, Run, RunId, spread_peers
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands, UsageError, sentence_of
from peer.console.notices import notice
from peer.console.plain_output import reader_has_left
from peer.console.word_wrap import fitting
from peer.observe.named_run import named_run, names_run
from peer.observe.run_names import every_run_here, has_owner_key

commands = Commands()

LOOK_SECONDS = 0.5
"""Between two looks at a log."""
MAX_LINES = 100_000


@commands.command(epilog="\b\nExample:\n  peer runs")
@exits_with_sentence
def runs(as_json: AsJson = False) -> int:
    """List the runs on this machine, with the state of your peer, its contribution, and the page."""
    from peer.observe.own_runs import own_runs, run_lines

    found = [one for run_id in every_run_here() for one in own_runs(run_id)]
    if as_json:
        print(json.dumps([one.facts() for one in found]))
        return 0
    if not found:
        _tell("No run on this machine yet. Join one: `peer join https://PAGE`. Try it alone: `peer demo`.")
        return 0
    print("\n".join(run_lines(found, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)))
    return 0


@commands.command(epilog="\b\nExample:\n  peer forget tinybytes")
@exits_with_sentence
def forget(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id or name of a run that `peer runs` lists.")],
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
) -> int:
    """Delete the folders of a run on this machine (key, log and checkpoints) and remove it from `peer runs`.

    Folders that you named with --data-dir stay on the disk.
    """
    from peer.observe.running_peer import running_in_any
    from peer.run_folders import folders_of, forget_run, known_places

    every = every_run_here()
    run_id = run if run in every else named_run(run, None, None).run_id
    if run_id not in every:
        raise UsageFault(f"{run[:80]!a} is not a run on this machine; expected one that `peer runs` lists.")
    named = [folder for _, folder in known_places(run_id)]
    folders = [folder for folder in folders_of(run_id) if folder.is_dir() and folder not in named]
    if running := running_in_any([*folders, *named]):
        raise UsageFault(f"{running[0].named} takes part in {run_id}; expected none; run `peer stop {run_id}` first.")
    if owned := [folder for folder in folders if has_owner_key(folder)]:
        raise UsageFault(
            f"{owned[0]} has the owner's key of {run_id}, which alone can change the run; expected a run of somebody "
            "else; move that folder away yourself."
        )
    shown = ", ".join(map(str, folders)) or "no folder"
    if not yes:
        if not sys.stdin.isatty():
            raise UsageFault(f"{shown} would be deleted; expected a terminal to confirm, or --yes.")
        if not typer.confirm(f"Delete {shown}, with this peer's key and its checkpoints?"):
            print("Nothing was deleted.")
            return 0
    for folder in folders:
        with writing(folder, "give its rights back"):
            shutil.rmtree(folder)
    forget_run(run_id)
    _tell(f"Forgot {run_id}. Deleted: {shown}." + (f" Still there: {', '.join(map(str, named))}." if named else ""))
    return 0


@commands.command("open", epilog="\b\nExample:\n  peer open tinybytes")
@exits_with_sentence
def open_(run: Run = None, run_id: RunId = None) -> int:
    """Open the page of a run in the browser, and print its address.

    For a run without a page, it looks on this machine: where `peer dashboard` served it last, and at port 8080.
    """
    from peer.observe.own_runs import find_page

    named = named_run(run, run_id, None).run_id
    if named is None and len(known := every_run_here()) == 1:
        named = known[0]
    if named is None:
        raise UsageFault(
            "Which run? Expected its id or its name: `peer open RUN`; `peer runs` lists those of this machine."
        )
    page = find_page(named, PAGE_PORT)
    print(page)
    if sys.stdout.isatty() and not webbrowser.open(page):
        notice("No browser opened. Open this address yourself.")
    return 0


@commands.command(epilog="\b\nExample:\n  peer stop\n  peer stop tinybytes")
@exits_with_sentence
def stop(
    run: Run = None,
    run_id: RunId = None,
    data_dir: DataDir = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0, max=3600, metavar="SECONDS", help="How long to wait for the peer to leave."),
    ] = 120.0,
) -> int:
    """Stop the peer on this machine, as Ctrl+C does in its terminal, and wait until it has left.

    RUN may also be the name of a peer, as in `peer runs`. If several match, it asks which one; without a terminal it
    lists them and stops none.
    """
    from peer.observe.running_peer import ask_to_leave, has_left, names_in, running_in_any

    found = []
    if run is not None and run_id is None and not names_run(run):
        wanted = run.strip().casefold()
        every = running_in_any(_folders(None, data_dir))
        found = [one for one in every if wanted in (name.casefold() for name in names_in(one.folder))]
    if not found:
        found = running_in_any(_folders(named_run(run, run_id, None)[0], data_dir))
    if not found:
        named = f" of {run or run_id}" if run or run_id else ""
        where = f"in {data_dir}" if data_dir else "on this machine"
        _tell(f"No peer{named} runs {where}; `peer runs` lists the runs on this machine.")
        return 0
    chosen = found[0] if len(found) == 1 else _chosen(found)
    if chosen is None:
        print("No peer was stopped.")
        return 0
    if not ask_to_leave(chosen):
        print(f"It has already left: {chosen.named}.")
        return 0
    _tell(f"Asked {chosen.named} to leave: it finishes its step and its round.")
    if not has_left(chosen, timeout):
        raise LocalFault(
            f"it still runs after {timeout:g} s; expected it to leave; `peer stop` once more ends it without a goodbye"
        )
    print("It has left.")
    return 0


@commands.command(epilog="\b\nExample:\n  peer logs -f\n  peer logs tinybytes --lines 200")
@exits_with_sentence
def logs(
    run: Run = None,
    run_id: RunId = None,
    data_dir: DataDir = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=MAX_LINES, metavar="N", help="How many.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events until Ctrl+C.")] = False,
) -> int:
    """Print the log of the peer on this machine: one sentence for each event, newest last.

    If several peers run, it shows all of them, and explains the prefix of each line first.
    """
    from peer.events.log_tail import LogReader
    from peer.folder_lock import told_holder_of

    named = named_run(run, run_id, None)[0]
    folders = [one for one in _folders(named, data_dir) if (one / "events.jsonl").exists()]
    if not folders:
        what = f"of {named} " if named else ""
        raise UsageFault(
            f"No peer {what}has written a log {f'in {data_dir}' if data_dir else 'on this machine'}; expected the run "
            "of a peer that runs or ran here; `peer runs` lists them."
        )
    running = {folder: words for folder in folders if len(folders) > 1 and (words := told_holder_of(folder))}
    if len(folders) > 1 and not running:
        newest = max(folders, key=lambda one: (one / "events.jsonl").stat().st_mtime)
        where = shlex.join(["--data-dir", str(newest)])
        notice(f"Shown is the newest of {len(folders)} logs here: {where}")
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
        raise  # whoever reads this has gone
    except OSError as error:
        raise LocalFault(
            f"{error.filename} cannot be read ({error.strerror or error}); expected a log of your own"
        ) from error
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


@commands.command(
    epilog="\b\nExample:\n  peer service tinybytes\n"
    "  peer service tinybytes --install -- --upload-limit-mbit 5 --device cpu\n"
    "  peer service tinybytes --seed -- --listen /ip4/0.0.0.0/tcp/4001",
)
@exits_with_sentence
def service(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run, as for `peer join`.", show_default=False)],
    flags: Annotated[
        list[str] | None, typer.Argument(metavar="-- FLAGS", help="Flags for `peer join` or `peer seed`.")
    ] = None,
    seed: Annotated[bool, typer.Option("--seed", help="Run `peer seed` instead of `peer join`.")] = False,
    shown: Annotated[
        bool, typer.Option("--print", help="Print the service file and write nothing (the default).")
    ] = False,
    install: Annotated[
        bool, typer.Option("--install", help="Write the service file, and print how to start it.")
    ] = False,
) -> int:
    """Run a peer as a user service: print or install a unit for systemd or launchd."""
    if shown and install:
        raise UsageFault("--print and --install are given together; expected one of them.")
    from peer.cli.service_files import NICENESS, service_file
    from peer.import_path import python_command

    what = "seed" if seed else "join"
    found, peers, _ = named_run(run, None, None)
    words = [what, str(found), *(word for address in peers or () for word in ("--peers", address)), *(flags or ())]
    _check(what, words[1:])
    program = Path(sysconfig.get_path("scripts")) / "peer"
    command = [str(program)] if program.exists() else python_command("peer")
    environment = {
        name: os.environ[name] for name in ("XDG_DATA_HOME", "HF_HOME", "OMP_NUM_THREADS") if os.environ.get(name)
    }
    try:
        home, folder = Path.home(), Path.cwd()
    except (RuntimeError, OSError) as error:
        raise UsageFault(f"There is no home or working folder ({error}); expected both; set HOME.") from error
    made = service_file(
        str(found).partition(".")[0],
        [*command, *words, "--plain"],
        folder,
        environment,
        sys.platform,
        home,
        niceness=0 if seed else NICENESS,
    )
    if made is None:
        raise UsageFault(f"{sys.platform} has neither systemd nor launchd; expected Linux or macOS.")
    if not install:
        print(made.text, end="")
        return 0
    from dht.ground.regular_files import write_whole

    there = made.path.exists()
    with writing(made.path):
        write_whole(made.path, made.text.encode())
    print(f"{'Replaced' if there else 'Written':<12}{made.path}")
    print(f"Start it:   {made.start}")
    print(f"Look:       {made.look}")
    print(f"End it:     {made.end}")
    if sys.platform.startswith("linux"):
        _tell("It runs while you are logged in; `loginctl enable-linger` keeps it after you log out.")
    return 0


def _chosen(running: Sequence[Any]) -> Any:
    """The one of several peers that the person at the terminal wants to leave; None: none of them.

    Raises:
        UsageFault: nobody is at a terminal, or the answer is no number of the list.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        lines = [shlex.join(["peer", "stop", "--data-dir", str(one.folder)]) for one in running]
        shown = [f"{command}\n  ends {one.named}" for command, one in zip(lines, running, strict=True)]
        raise UsageFault("\n".join([f"{len(running)} peers run here; expected one of these commands.", *shown]))
    for number, one in enumerate(running, 1):
        print(f"{number:>2}  {one.named}\n    {one.folder}")
    choices = {str(number): one for number, one in enumerate(running, 1)}
    try:
        typed = input(f"Which peer should stop? 1 to {len(running)}; Enter: none.  ").strip()
    except EOFError:
        return None
    if typed and typed not in choices:
        raise UsageFault(f"{typed[:80]!a} is not the number of a peer; expected 1 to {len(running)}.")
    return choices.get(typed)


def _check(what: str, words: list[str]) -> None:
    """Refuse flags that the command would refuse: a service says so where nobody looks."""
    import importlib

    from peer.config.peer_config import load_config

    group = typer.main.get_group(importlib.import_module("peer.cli.init_join_seed").commands)
    try:
        context = group.commands[what].make_context(f"peer {what}", spread_peers(words))
    except UsageError as mistake:
        raise UsageFault(sentence_of(mistake)) from mistake
    load_config({**context.obj, "run_id": words[0]}, context.params.get("config"))


def _folders(run_id: str | None, data_dir: str | None) -> list[Path]:
    """Folders that may be meant."""
    from peer.observe.own_runs import own_runs
    from peer.user_folders import expanded

    if data_dir is not None:
        if not expanded(data_dir).is_dir():
            raise UsageFault(f"{data_dir} is not a folder; expected the data folder of a peer; check --data-dir.")
        return [expanded(data_dir)]
    return [one.folder for named in ([run_id] if run_id else every_run_here()) for one in own_runs(named)]


def _labels(folders: list[Path]) -> dict[Path, str]:
    """What stands before lines of each: its run's name, and no other text that looks like one.

    Its path where two would be the same.
    """
    short = {folder: _label(folder.name) for folder in folders}
    is_clear = len(set(short.values())) == len(folders)
    return short if is_clear else {folder: str(folder) for folder in folders}


def _label(folder_name: str) -> str:
    """``tinybytes`` of a run's usual folder, ``tinybytes (2)`` of a further one, ``mine/`` of one named by hand."""
    usual = re.fullmatch(r"(.+)\.[a-z2-7]{20}(?:-([1-9][0-9]?))?", folder_name)
    if usual is None:
        return f"{folder_name}/"
    name, number = usual.groups()
    return f"{name} ({number})" if number else str(name)


def _print(events: Any, labels: dict[Path, str]) -> None:
    for path, event in events:
        clock = f"{day_text(event.at)}, {clock_text(event.at)}"
        label = f"{labels[path.parent]}  " if len(labels) > 1 else ""
        _tell(f"{clock}  {label}{event.sentence()}")


def _tell(sentence: str) -> None:
    print(fitting(sentence, sys.stdout), flush=True)
