"""What keeps a peer running without a terminal: a user unit of systemd, or an agent of launchd. Pure."""

from __future__ import annotations

import plistlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dht.ground.errors import UsageFault

STOP_SECONDS = 120
"""For a peer to finish its step and its round after it was asked to leave: far above what a round takes."""
RESTART_SECONDS = 60
"""After a fault: often enough to come back in the evening, rare enough for a run that has ended."""
NICENESS = 10
"""Of what trains: half of the way to the lowest priority, so that programs with a window are served first."""


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """A file for this system, and the commands that begin, show and end what it describes."""

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
    """The file that keeps `command` running; None: this system has neither systemd nor launchd.

    Args:
        name: of letters, digits, dots and hyphens.
        command: program and arguments, from an absolute path on.
        folder: the working directory.
        environment: variables that the command needs.
        platform: as `sys.platform`.
        niceness: 0 to 19; a higher one gives way to other programs.

    Raises:
        UsageFault: a line break, or another control character, stands in a word that the file would have.
    """
    for word in (*command, str(folder), *environment.values()):
        if not all(character.isprintable() for character in word):
            raise UsageFault(
                f"{word!r} has a control character, such as a line break; expected none in what a service file names; "
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
        # A wrong flag, another run or another version is not mended by trying again.
        "Restart=on-failure",
        f"RestartSec={RESTART_SECONDS}",
        "RestartPreventExitStatus=2 4 5",
        # Stopped while it loads or looks for members.
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
    """A word of a unit file: systemd expands % there, cuts at spaces, and takes off quotes."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    is_plain = bool(word) and not any(character.isspace() or character in "\"';" for character in word)
    return escaped if is_plain else f'"{escaped}"'
