"""What averaging costs the inner loop: steps per second with a fragment sent at every step, and without any.

    python -m benchmarks.bench_stall [--seconds 20] [--cores apart,same] [--json]
    python -m benchmarks.bench_stall --lab NETLAB.py --up 400 --rtt 30       (root; see benchmarks/lines/)
    python -m benchmarks.bench_stall --device cuda --layers 12 --width 768

One peer trains the built-in GPT on one core. A second one computes nothing in steps as long as the trainer's, and takes
part in the rounds. With H = P every step sends a fragment. The same trainer process first trains without a swarm, then
in it. `apart`: its network process and daemon have another core, which they share with the other peer and the emulator.
`same`: they share the trainer's, and only the others are elsewhere. Each arm ends with as long a time without a swarm
again, so that a machine that slowed down shows.

Reported are inner steps per second off and on, and shares of wall time. One share is that in which the trainer waited
for the network side (the mailbox's own counter). The other is that in which it copied to and from the mailbox, also in
milliseconds per 25 M values given and taken. Reported too are CPU seconds of network process and daemon per 10^9 bytes
moved up and down.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from statistics import median, quantiles
from typing import Any

from benchmarks.lines.home_lines import home_lines, numbers
from benchmarks.machine import machine
from benchmarks.members.real_swarm import real_swarm
from dht.ground.errors import DeviceFault
from peer.trainer.devices.device_choice import select_device

ARMS = ("apart", "same")
WARM_UP_SECONDS = 3.0
FIRST_COMMITS = 12
"""Before counting: deadlines are learned, streams are open, pages are touched."""


def measure(options: argparse.Namespace, arm: str, own: int, other: int) -> dict[str, Any]:
    """One arm: off, on, off."""
    shape = {"layers": options.layers, "width": options.width, "context": options.context}
    shape |= {"sync_every": options.sync_every, "fragments": options.fragments}
    up = numbers(options.up, 2, "--up")
    os.sched_setaffinity(0, {other})
    with home_lines(options.lab, up, up, options.rtt) as lab, real_swarm(lab, **shape) as swarm:
        trainer = swarm.start_member(company=False, cores=[own], device=options.device)
        trainer.ask(do="train", seconds=WARM_UP_SECONDS)
        before = trainer.ask(do="train", seconds=options.seconds)
        trainer.ask(do="pin", cores=[own if arm == "same" else other])
        swarm.join_member(trainer)
        trainer.ask(do="pin", cores=[own])
        company = swarm.start_member(company=True, cores=[other])
        swarm.join_member(company)
        # As slow as the trainer: what it contributes would be too old among the rounds of a much faster one.
        company.ask(do="company", step_seconds=median(before["step_seconds"]))
        trainer.ask(do="train", seconds=WARM_UP_SECONDS, commits=FIRST_COMMITS)
        on = trainer.ask(do="train", seconds=options.seconds)
        trainer.ask(do="leave")
        company.stop()
        after = trainer.ask(do="train", seconds=options.seconds)
    return facts(arm, [before, after], on)


def facts(arm: str, off: list[dict[str, Any]], on: dict[str, Any]) -> dict[str, Any]:
    """What is printed of one arm."""
    rates = [len(one["step_seconds"]) / one["seconds"] for one in off]
    rate = len(on["step_seconds"]) / on["seconds"]
    moved = on["bytes"]
    copies = on["values"] / 25e6
    cpu = on["cpu_seconds"]
    return {
        "arm": arm,
        "off_steps_per_second": rates,
        "on_steps_per_second": rate,
        "on_to_off": rate / (sum(rates) / len(rates)),
        "off_step_ms": _spread([step for one in off for step in one["step_seconds"]]),
        "on_step_ms": _spread(on["step_seconds"]),
        "wait_share": on["wait_seconds"] / on["seconds"],
        "copy_share": on["exchange_seconds"] / on["seconds"],
        "copy_ms_per_25_million_values": 1e3 * on["exchange_seconds"] / copies if copies else None,
        "commits_per_second": on["commits"] / on["seconds"],
        "share_of_commits_with_both": on["common_commits"] / on["commits"] if on["commits"] else 0.0,
        "median_round_seconds": median(on["round_seconds"]) if on["round_seconds"] else None,
        "mbit_per_second_both_ways": 8e-6 * moved / on["seconds"],
        "network_cpu_seconds_per_gb": 1e9 * cpu.get("network", 0.0) / moved if moved else None,
        "daemon_cpu_seconds_per_gb": 1e9 * cpu.get("daemon", 0.0) / moved if moved else None,
        "network_and_daemon_share_of_one_core": (cpu.get("network", 0.0) + cpu.get("daemon", 0.0)) / on["seconds"],
    }


def _spread(seconds: list[float]) -> dict[str, float]:
    cuts = quantiles(seconds, n=100) if len(seconds) > 1 else seconds * 99
    return {"p50": 1e3 * cuts[49], "p95": 1e3 * cuts[94], "p99": 1e3 * cuts[98], "max": 1e3 * max(seconds)}


def main() -> int:
    parser = argparse.ArgumentParser(description="What averaging costs the inner loop.")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (default 20)")
    parser.add_argument("--cores", default="apart,same", help="arms: apart, same or both (default)")
    parser.add_argument("--layers", type=int, default=8, help="layers of the model (default 8)")
    parser.add_argument("--width", type=int, default=512, help="d_model (default 512: 25 M parameters with 8 layers)")
    parser.add_argument("--context", type=int, default=64, help="tokens of each of the four sequences (default 64)")
    parser.add_argument("--sync-every", type=int, default=4, help="H (default 4: every step sends a fragment)")
    parser.add_argument("--fragments", type=int, default=4, help="P (default 4)")
    parser.add_argument("--device", default="cpu", help="where the trainer computes: cpu (default), cuda, cuda:N")
    parser.add_argument("--lab", help="Python file with a class Lab; needs root")
    parser.add_argument("--up", default="400", help="with --lab: Mbit/s each way, one number or two (default 400)")
    parser.add_argument("--rtt", type=float, default=30.0, help="with --lab: round trip in ms (default 30)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    arms = options.cores.split(",")
    if unknown := [arm for arm in arms if arm not in ARMS]:
        parser.error(f"--cores {','.join(unknown)}: expected some of {', '.join(ARMS)}")
    if not 1 <= options.seconds <= 3600:
        parser.error(f"--seconds {options.seconds:g}: expected 1 to 3600")
    try:
        select_device(options.device)
    except DeviceFault as fault:
        parser.error(f"--device {options.device}: {fault}")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        parser.error(f"{len(cores)} cores that can be chosen; expected Linux and two: the trainer's and everybody's")
    command = " ".join(["python -m benchmarks.bench_stall", *sys.argv[1:]])
    line = "loopback" if options.lab is None else f"{options.up} Mbit/s, {options.rtt:g} ms"
    if options.json:
        found = [measure(options, arm, cores[0], cores[1]) for arm in arms]
        print(json.dumps({"command": command, "machine": machine(), "line": line, "arms": found}))
        return 0
    print(command)
    print(", ".join(f"{key} {value}" for key, value in machine().items()), flush=True)
    for arm in arms:
        print_arm(measure(options, arm, cores[0], cores[1]), line)
    return 0


def print_arm(one: dict[str, Any], line: str) -> None:
    """One arm for people."""
    first, last = one["off_steps_per_second"]
    print(f"network process on the {one['arm']} core{'s' if one['arm'] == 'apart' else ''}, {line}")
    print(f"  steps per second   {first:.2f} and {last:.2f} off, {one['on_steps_per_second']:.2f} on: ", end="")
    print(f"{one['on_to_off']:.1%}")
    for name in ("off", "on"):
        spread = one[f"{name}_step_ms"]
        print(f"  step, {name:3}          {', '.join(f'{key} {value:.0f}' for key, value in spread.items())} ms")
    print(f"  waiting            {one['wait_share']:.3%} of the time")
    copies = one["copy_ms_per_25_million_values"]
    per_exchange = "" if copies is None else f", {copies:.0f} ms per 25 M values given and taken"
    print(f"  copying            {one['copy_share']:.2%} of the time{per_exchange}")
    if one["median_round_seconds"] is None:
        print("  rounds             NONE with work of this peer")
        return
    both = one["share_of_commits_with_both"]
    print(
        f"  rounds             {one['commits_per_second']:.2f} a second, {both:.0%} of both"
        f" peers, {one['median_round_seconds']:.2f} s each, {one['mbit_per_second_both_ways']:.0f} Mbit/s up and down "
        "together"
    )
    print(
        f"  CPU per GB moved   {one['network_cpu_seconds_per_gb']:.1f} s network process, "
        f"{one['daemon_cpu_seconds_per_gb']:.1f} s daemon; "
        f"{one['network_and_daemon_share_of_one_core']:.0%} of a core"
    )


if __name__ == "__main__":
    sys.exit(main())
