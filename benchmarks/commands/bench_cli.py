"""Processor seconds of help and of each kind of mistake, with everything that the command starts.

    python -m benchmarks.commands.bench_cli [--repeat 3] [--only WORD] [--json]

Each command line runs in a process of its own, in an empty data folder. Its fastest run counts, because whatever else
the machine does only adds to it. Modules are compiled before, as those of an installed copy are. A seed of another run
answers where a run id is wrong.
Goals: 0.15 s for `peer --help`, 0.7 s for a mistake.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from dht.identity.keys import Identity
from peer.config.peer_config import ADDRESSES_NAME, read_cached_peers
from peer.import_path import python_command, python_environment

HELP_SECONDS, MISTAKE_SECONDS = 0.15, 0.7
UNKNOWN_RUN = "demo.aaaaaaaaaaaaaaaaaaaa"


@dataclass(frozen=True, slots=True)
class Case:
    """A command line and what it shall cost; `code` is how it ends."""

    name: str
    words: tuple[str, ...]
    code: int = 2
    goal_seconds: float = MISTAKE_SECONDS


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one command line: processor seconds with those of its children, and seconds by the clock."""

    cpu_seconds: float
    wall_seconds: float


def cases(answering: str, silent: str) -> list[Case]:
    """All that is measured.

    Args:
        answering: the address of a member of another run.
        silent: one where nobody listens.
    """
    there, nobody = ("--peers", answering), ("--peers", silent)
    return [
        Case("help", ("--help",), 0, HELP_SECONDS),
        Case("help of join", ("join", "--help"), 0),
        Case("unknown command", ("jion",)),
        Case("unknown flag", ("join", "--devce", "cpu")),
        Case("wrong value", ("join", "--threads", "zero")),
        Case("wrong file", ("join", "--config", "nofile.toml")),
        Case("wrong invite", ("join", "--invite", "nofile")),
        Case("wrong run file", ("plan", "nofile.toml")),
        Case("wrong model file", ("evaluate", "--model", "nofile")),
        Case("wrong receipts", ("receipts", "verify", "nofile")),
        Case("no run", ("join",)),
        Case("no address", ("join", UNKNOWN_RUN)),
        Case("no address for a seed", ("seed", UNKNOWN_RUN)),
        Case("no key of the owner", ("members", UNKNOWN_RUN)),
        Case("silent page", ("join", f"http://127.0.0.1:{silent.split('/')[4]}"), 3),
        Case("silent address, join", ("join", UNKNOWN_RUN, *nobody, "--join-timeout", "1"), 3),
        Case("silent address, status", ("status", UNKNOWN_RUN, *nobody, "--timeout", "1"), 3),
        Case("silent address, export", ("export", UNKNOWN_RUN, *nobody, "--timeout", "1"), 3),
        Case("another run there, join", ("join", UNKNOWN_RUN, *there)),
        Case("another run there, status", ("status", UNKNOWN_RUN, *there)),
        Case("another run there, export", ("export", UNKNOWN_RUN, *there)),
    ]


def measure(case: Case, folder: Path) -> Cost:
    """Run one command line in `folder`, which also gets its data.

    Raises:
        SystemExit: it did not end as it should.
    """
    environment = _environment(folder)
    with tempfile.TemporaryFile("w+") as said:
        began = time.monotonic()
        process = subprocess.Popen(
            python_command("peer", *case.words),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != case.code:
            said.seek(0)
            raise SystemExit(f"{case.words} ended with {process.returncode}, not {case.code}: {said.read()[-500:]}")
    return Cost(used.ru_utime + used.ru_stime, wall)


def _environment(folder: Path) -> dict[str, str]:
    """With `folder` for data, and a folder beside the measured ones in which compiled modules stay."""
    kept = {name: value for name, value in python_environment().items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "XDG_DATA_HOME": str(folder), "PYTHONPYCACHEPREFIX": str(folder.parent / "compiled")}


@contextmanager
def seed_of_another_run(folder: Path) -> Iterator[str]:
    """A seed on this machine; gives its address."""
    environment = _environment(folder)
    words = (["init", "bench", "--out", str(folder / "seed")], ["seed", "bench", "--data-dir", str(folder / "seed")])
    subprocess.run(python_command("peer", *words[0]), env=environment, check=True, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(
        python_command("peer", *words[1], "--plain", "--listen", "/ip4/127.0.0.1/tcp/0"),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "found" in line:
                break
        yield read_cached_peers(folder / "seed" / ADDRESSES_NAME)[0]
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that is taken, so that nobody else gets it, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each command line")
    parser.add_argument("--only", default="", metavar="WORD", help="cases with this in their name")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.repeat < 1:
        raise SystemExit(f"--repeat is {options.repeat}; expected at least 1")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made, closed_port() as port:
        folder = Path(made)
        silent = f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity.generate().peer_id}"
        with seed_of_another_run(folder / "other") as answering:
            chosen = [case for case in cases(answering, silent) if options.only in case.name]
            if not chosen:
                raise SystemExit(f"--only {options.only!a} is in no name of a case")
            for case in chosen:
                home = folder / "home"
                home.mkdir(exist_ok=True)
                measure(case, home)  # compiles what it loads
                best = min((measure(case, home) for _ in range(options.repeat)), key=lambda cost: cost.cpu_seconds)
                rows.append(
                    {
                        "case": case.name,
                        "cpu_seconds": round(best.cpu_seconds, 3),
                        "wall_seconds": round(best.wall_seconds, 3),
                        "goal_cpu_seconds": case.goal_seconds,
                        "command": " ".join(["peer", *case.words]),
                    }
                )
    facts = machine()
    if options.json:
        print(json.dumps({"machine": facts, "repeat": options.repeat, "cases": rows}))
        return
    print(f"python -m benchmarks.commands.bench_cli --repeat {options.repeat}")
    print("; ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"\n{'case':28}{'CPU s':>7}{'wall s':>8}{'goal':>7}")
    for row in rows:
        late = "" if row["cpu_seconds"] <= row["goal_cpu_seconds"] else "  missed"
        figures = f"{row['cpu_seconds']:7.2f}{row['wall_seconds']:8.2f}{row['goal_cpu_seconds']:7.2f}"
        print(f"{row['case']:28}{figures}{late}")


if __name__ == "__main__":
    main()
