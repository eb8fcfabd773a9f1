"""`peer service`: keeps a peer running without a terminal."""

from __future__ import annotations

import os
import plistlib
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dht.ground.errors import UsageFault, writing
from peer.cli.options import spread_peers
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands, UsageError, sentence_of
from peer.console.word_wrap import print_fitting
from peer.observe.named_run import named_run

app = Commands()

STOP_SECONDS = 120
"""Time for a peer to finish its step and its round after a request to leave: far longer than a round."""
RESTART_SECONDS = 60
"""Delay of a restart after a failure: short enough to rejoin the same evening, long enough for a run that has ended."""
NICENESS = 10
"""Niceness of a training peer: half of the way to the lowest priority, so that interactive programs come first."""


@app.command(
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
    install: Annotated[
        bool,
        typer.Option("--install", help="Write the file instead of printing it, and print how to start it."),
    ] = False,
) -> int:
    """Run a peer as a user service: print or install a unit for systemd or launchd."""
    from peer.import_path import python_command

    what = "seed" if seed else "join"
    found, peers, *_ = named_run(run, None, None)
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
        print_fitting("It runs while you are logged in; `loginctl enable-linger` keeps it after you log out.")
    return 0


def _check(what: str, words: list[str]) -> None:
    """Refuse flags that the command would refuse, because the errors of a service only appear in its log."""
    from peer.cli.usage.lazy_commands import peer_command
    from peer.config.peer_config import load_config

    try:
        context = peer_command().commands[what].make_context(f"peer {what}", spread_peers(words))
    except UsageError as mistake:
        raise UsageFault(sentence_of(mistake)) from mistake
    load_config({**context.obj, "run_id": words[0]}, context.params.get("config"))


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """A service file for this system, and the commands that start, show and end the service."""

    path: Path
    text: str
    start: str
    look: str
    end: str


def service_file(
    name: str,
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    platform: str,
    home: Path,
    niceness: int = 0,
) -> ServiceFile | None:
    """Return the service file that keeps `command` running, or None on a system without systemd and launchd.

    Args:
        name: name of the service: letters, digits, dots and hyphens.
        command: absolute path of the program, and its arguments.
        folder: the working directory.
        environment: variables that the command needs.
        platform: as `sys.platform`.
        niceness: 0 to 19; a higher value gives priority to other programs.

    Raises:
        UsageFault: a word for the file contains a line break or another control character.
    """
    for word in (*command, str(folder), *environment.values()):
        if not all(character.isprintable() for character in word):
            raise UsageFault(
                f"{word!r} has a control character, such as a line break; expected none in a service file; "
                "rename the file or folder."
            )
    if platform == "darwin":
        label = f"murmuration.{name}"
        path = home / "Library" / "LaunchAgents" / f"{label}.plist"
        settings = {
            "Label": label,
            "ProgramArguments": list(command),
            "WorkingDirectory": str(folder),
            "EnvironmentVariables": dict(environment),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": RESTART_SECONDS,
            "ExitTimeOut": STOP_SECONDS,
            "Nice": niceness,
            "StandardOutPath": str(home / "Library" / "Logs" / f"{label}.log"),
            "StandardErrorPath": str(home / "Library" / "Logs" / f"{label}.log"),
        }
        return ServiceFile(
            path,
            plistlib.dumps(settings).decode(),
            start=f"launchctl bootstrap gui/$(id -u) {path}",
            look=f"launchctl print gui/$(id -u)/{label}",
            end=f"launchctl bootout gui/$(id -u)/{label}",
        )
    if not platform.startswith("linux"):
        return None
    unit = f"murmuration-{name}.service"
    lines = [
        "[Unit]",
        f"Description=Murmuration: {name}",
        "",
        "[Service]",
        f"ExecStart={' '.join([_quoted(command[0]), *(_quoted(word).replace('$', '$$') for word in command[1:])])}",
        f"WorkingDirectory={str(folder).replace('%', '%%')}",
        *(f"Environment={_quoted(f'{key}={value}')}" for key, value in environment.items()),
        f"Nice={niceness}",
        # A restart does not repair a wrong flag, a different run or a different version.
        "Restart=on-failure",
        f"RestartSec={RESTART_SECONDS}",
        "RestartPreventExitStatus=2 4 5",
        # The exit code of a peer that is stopped while it loads or looks for members.
        "SuccessExitStatus=130",
        f"TimeoutStopSec={STOP_SECONDS}",
        "KillMode=mixed",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return ServiceFile(
        home / ".config" / "systemd" / "user" / unit,
        "\n".join(lines) + "\n",
        start=f"systemctl --user daemon-reload && systemctl --user enable --now {unit}",
        look=f"journalctl --user -u {unit} -f",
        end=f"systemctl --user disable --now {unit}",
    )


def _quoted(word: str) -> str:
    """Return a word quoted for a unit file, where systemd expands %, splits at spaces and removes quotes."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    is_plain = bool(word) and not any(character.isspace() or character in "\"';" for character in word)
    return escaped if is_plain else f'"{escaped}"'
