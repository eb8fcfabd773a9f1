"""What the scripts of this folder share: members over the same lines as `bench_round`, timed in the same way.

A member is the same script with `--member`; it answers every line on standard input with a line of JSON. Its system
does all the exchanging; ours starts it, says "round" to all members at once and reads the clock.

With `--kill S` one more round follows, in which the last member's processes get SIGKILL after S seconds. The output
tells what each survivor's call then says, when, and whether they hold the same values. What the call says is not
believed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lines.home_lines import MAX_HOSTS, home_lines, numbers
from benchmarks.machine import machine
from benchmarks.members.member_process import MemberProcess
from benchmarks.members.processes import family

PORT = 29_511
"""Of whatever the first member offers to the others."""
SURVIVOR_SECONDS = 90.0
"""After a death. A member that has said nothing by then hangs."""
ROOT = Path(__file__).parent.parent.parent


def say(**fields: Any) -> None:
    """A member's answer."""
    print(json.dumps(fields), flush=True)


def serve(do: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """A member's life: orders until the input ends; what it takes is answered here."""
    say(ready=True)
    while line := sys.stdin.readline():
        order = json.loads(line)
        if order["do"] == "usage":
            processes = family(os.getpid())
            say(
                cpu_seconds=sum(process.cpu_seconds for process in processes),
                peak_mb=sum(process.peak_mb for process in processes),
                num_processes=len(processes),
            )
        else:
            say(**do(order))


def parser_of(description: str, bits: Sequence[int]) -> argparse.ArgumentParser:
    """Options that every script here takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peers", type=int, default=4, help="members (default 4)")
    parser.add_argument("--values", type=int, default=25_000_000, help="parameters (default 25 M)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds after the first (default 5)")
    parser.add_argument("--bits", type=int, default=bits[0], choices=list(bits), help=f"on the wire ({bits[0]})")
    parser.add_argument("--lab", help="Python file with a class Lab; needs root (see benchmarks/lines/)")
    parser.add_argument("--up", default="100", help="with --lab: upload in Mbit/s, one number or one per member")
    parser.add_argument("--down", help="with --lab: download in Mbit/s (default: as --up)")
    parser.add_argument("--rtt", type=float, default=30.0, help="with --lab: round trip in ms (default 30)")
    parser.add_argument("--loss", type=float, default=0.0, help="with --lab: share of packets lost (default 0)")
    parser.add_argument("--kill", type=float, help="afterwards: kill one member so many seconds into a round")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--member", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ip", help=argparse.SUPPRESS)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    return parser


def needs(package: str, how: str) -> None:
    """Say in a sentence that a package is missing, with how it is installed, and end.

    Raises:
        SystemExit: it is missing.
    """
    if importlib.util.find_spec(package) is None:
        raise SystemExit(f"{package} is not installed, so this comparison is left out; install it with: {how}")


def bench(module: str, system: str, options: argparse.Namespace) -> int:
    """Start the members, time the rounds, print. Returns the exit code."""
    if options.kill is not None and not (0 < options.kill <= SURVIVOR_SECONDS and options.peers > 2):
        raise SystemExit(
            f"--kill {options.kill:g}: expected 0 to {SURVIVOR_SECONDS:g} seconds, and more than two peers"
        )
    if not 2 <= options.peers <= MAX_HOSTS or options.values < 1 or options.rounds < 1:
        raise SystemExit(
            f"--peers {options.peers} --values {options.values} --rounds {options.rounds}: expected 2 to {MAX_HOSTS} "
            "peers, at least 1 value and 1 round"
        )
    up = numbers(options.up, options.peers, "--up")
    down = numbers(options.down or options.up, options.peers, "--down")
    with home_lines(options.lab, up, down, options.rtt, options.loss) as lab:
        members: list[MemberProcess] = []
        try:
            for index in range(options.peers):
                members.append(_start(module, options, lab, index))
            met: dict[str, Any] = {}
            for member in members:
                met |= member.ask(do="meet", **met)
            for member in members:
                member.tell(do="enter")
            for member in members:
                member.read()
            rounds = [_round(members, number, lab) for number in range(options.rounds + 1)]
            usage = [member.ask(do="usage") for member in members]
            survivors = None if options.kill is None else _killed_round(members, options)
        finally:
            for member in members:
                member.stop()
    result = {
        "command": " ".join([f"python -m {module}", *sys.argv[1:]]),
        "machine": machine(),
        "system": system,
        "peers": options.peers,
        "values": options.values,
        "bits": options.bits,
        "lines": "loopback" if lab is None else f"{options.up} Mbit/s, rtt {options.rtt:g} ms, loss {options.loss:g}",
        "first_seconds": rounds[0]["seconds"],
        "seconds": [one["seconds"] for one in rounds[1:]],
        "median_seconds": median(one["seconds"] for one in rounds[1:]),
        "megabytes_on_the_line_per_peer": _megabytes(rounds, options.peers),
        "cpu_seconds_per_round_and_peer": (rounds[-1]["cpu"] - rounds[0]["cpu"]) / options.rounds / options.peers,
        "peak_mb": max(one["peak_mb"] for one in usage),
        "relative_error": max(one["error"] for one in rounds),
        "all_equal": all(one["equal"] for one in rounds),
        "killed_round": survivors,
    }
    _show(result, options.json)
    return 0


def _start(module: str, options: argparse.Namespace, lab: Any, index: int) -> MemberProcess:
    ip, first = ("127.0.0.1", "127.0.0.1") if lab is None else (lab.ip(index), lab.ip(0))
    command = [sys.executable, "-m", module, "--member", str(index), "--ip", ip, "--first", first]
    command += ["--peers", str(options.peers), "--values", str(options.values), "--bits", str(options.bits)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo" if lab is None else "eth0"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    pipes["cwd"] = ROOT
    return MemberProcess(index, subprocess.Popen(command, **pipes) if lab is None else lab.run(index, command, **pipes))


def _round(members: list[MemberProcess], number: int, lab: Any) -> dict[str, Any]:
    for member in members:
        member.tell(do="prepare", number=number)
    for member in members:
        member.read()
    before = None if lab is None else sum(line["tx"] for line in lab.stats())
    for member in members:
        member.tell(do="round")
    answers = [member.read() for member in members]
    if failed := [answer["failed"] for answer in answers if "failed" in answer]:
        raise SystemExit(f"round {number} failed: {failed[0]}")
    after = None if lab is None else sum(line["tx"] for line in lab.stats())
    usage = [member.ask(do="usage") for member in members]
    seconds = max(answer["ended_at"] for answer in answers) - min(answer["began_at"] for answer in answers)
    print(f"round {number}: {seconds:.3f} s", file=sys.stderr, flush=True)
    return {
        "seconds": seconds,
        "line_bytes": None if before is None or after is None else after - before,
        "cpu": sum(one["cpu_seconds"] for one in usage),
        "error": max(answer["error"] for answer in answers),
        "equal": len({answer["digest"] for answer in answers}) == 1,
    }


def _killed_round(members: list[MemberProcess], options: argparse.Namespace) -> dict[str, Any]:
    """One member dies in mid-round: what the survivors say, and when."""
    victim, survivors = members[-1], members[:-1]
    for member in members:
        member.tell(do="prepare", number=options.rounds + 1)
    for member in members:
        member.read()
    for member in members:
        member.tell(do="round")
    time.sleep(options.kill)
    died_at = time.monotonic()
    _kill(victim)
    with ThreadPoolExecutor(len(survivors)) as executor:
        futures = [executor.submit(_answer_of, member, died_at + SURVIVOR_SECONDS) for member in survivors]
        answers = [future.result() for future in futures]
    returned = [answer for answer in answers if "failed" not in answer]
    return {
        "seconds": [answer["ended_at"] - died_at for answer in answers],
        "said": [answer.get("failed", "success") for answer in answers],
        "relative_errors": [answer["error"] for answer in returned],
        "equal": len(returned) == len(answers) and len({answer["digest"] for answer in returned}) == 1,
    }


def _kill(member: MemberProcess) -> None:
    """SIGKILL to all its processes: a child that lived on would keep the pipe open on which its answers are awaited."""
    for process in family(member.process_id):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _answer_of(member: MemberProcess, end: float) -> dict[str, Any]:
    """Its answer, or that none came; then it is killed."""
    timer = threading.Timer(max(0.0, end - time.monotonic()), _kill, (member,))
    timer.start()
    try:
        return member.read()
    except SystemExit as ended:
        return {"failed": f"no answer ({ended})", "ended_at": time.monotonic()}
    finally:
        timer.cancel()


def _megabytes(rounds: list[dict[str, Any]], num_peers: int) -> float | None:
    counted = [one["line_bytes"] for one in rounds[1:] if one["line_bytes"] is not None]
    return median(counted) / num_peers / 1e6 if counted else None


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    print(result["command"])
    print(", ".join(f"{key} {value}" for key, value in result["machine"].items()))
    print(f"{result['system']}: {result['peers']} peers, {result['values']} values, {result['bits']} bits")
    print(f"lines              {result['lines']}")
    spread = f"{min(result['seconds']):.2f} to {max(result['seconds']):.2f}"
    print(f"round, median      {result['median_seconds']:.2f} s ({spread}); the first {result['first_seconds']:.2f} s")
    if result["megabytes_on_the_line_per_peer"] is not None:
        print(
            f"on the line        {result['megabytes_on_the_line_per_peer']:.1f} MB sent per peer and round, headers too"
        )
    print(f"CPU per round      {result['cpu_seconds_per_round_and_peer']:.2f} s per peer, all its processes")
    print(f"peak resident      {result['peak_mb']:.0f} MB per peer, all its processes (shared pages count in each)")
    print(f"relative error     {result['relative_error']:.1e} of the mean, root mean square")
    print(f"members equal      {'yes' if result['all_equal'] else 'NO'}")
    if result["killed_round"] is not None:
        killed = result["killed_round"]
        print(
            f"a member killed    the others equal afterwards: {'yes' if killed['equal'] else 'NO'}; seconds after it:"
        )
        for seconds, said in zip(killed["seconds"], killed["said"], strict=True):
            print(f"                   {seconds:7.2f} {said[:150]}")
        errors = ", ".join(f"{error:.1e}" for error in killed["relative_errors"]) or "none returned"
        print(f"                   relative errors against the mean of all: {errors}")
