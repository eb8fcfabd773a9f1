"""How long `peer join` takes from the command to the first inner step, with the anchors of 25 M parameters to fetch.

    python -m benchmarks.bench_join [--width 512] [--donors 1] [--joins 3] [--json]
    python -m benchmarks.bench_join --lab NETLAB.py --up 100 --rtt 30        (root; see benchmarks/lines/)

Donors are real peers that have trained a little (nobody fetches version 0) and now only serve. Then `peer join` starts
in a new folder, with one thread, and leaves again; so many times. Times are those of its event log: `caught up` says
when the anchors were there, `sent` that the first inner step is done (it is sent at once: H is 1), `committed` that a
round has it. The limit: anchors and momentum are 8 bytes a value, at the joiner's download rate. Held-out evaluation,
which comes before the first step, is cut to one batch. How long the imports alone take is measured on the side.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from averaging.rounds.round_facts import RoundCommitted, SentContribution
from benchmarks.bench_footprint import BARE
from benchmarks.lines.home_lines import MAX_HOSTS, home_lines, numbers
from benchmarks.machine import machine
from benchmarks.members.real_swarm import RealSwarm, real_swarm
from peer.events.anchor_events import Fetched
from peer.events.event_log import from_json
from peer.events.peer_events import Event, JoinedRun

JOIN_SECONDS = 300.0
LOOK_SECONDS = 0.02
FIRST_STEPS_SECONDS = 8.0
"""Of training by the donors, so that all fragments have left version 0."""
IMPORTS = {"command": BARE["trainer process"], "network process": BARE["network process"]}


def import_seconds() -> dict[str, float]:
    """Wall time of the imports of both processes, each alone, once they are in the file cache: the best of three."""
    found = {}
    for name, statement in IMPORTS.items():
        times = []
        for _ in range(3):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            times.append(time.perf_counter() - began)
        found[name] = min(times)
    return found


def one_join(swarm: RealSwarm, index: int, folder: Path) -> dict[str, float]:
    """Seconds from the command to each mark."""
    words = ["-m", "peer", "join", "--run-id", swarm.run.run_id, "--data-dir", str(folder), "--json", "--threads", "1"]
    words += ["--device", "cpu", "--listen", f"/ip4/{swarm.ip(index)}/tcp/0"]
    for address in swarm.addresses:
        words += ["--peers", address]
    shown = folder.with_suffix(".stdout")
    with shown.open("wb") as output:
        began = time.time()
        process = swarm.popen(index, [sys.executable, *words], stdout=output, stdin=subprocess.DEVNULL)
    try:
        return marks(wait_for_commit(shown, process), began)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_commit(shown: Path, process: subprocess.Popen[bytes]) -> list[Event]:
    """All events up to the first commit with the newcomer's work.

    Raises:
        SystemExit: it ended, or none came in time.
    """
    end = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < end:
        events = [from_json(line) for line in shown.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        if any(isinstance(event.fact, RoundCommitted) and event.peer_id in event.fact.contributors for event in events):
            return events
        if process.poll() is not None:
            raise SystemExit(f"`peer join` ended with {process.returncode}; its words are above")
        time.sleep(LOOK_SECONDS)
    raise SystemExit(f"no commit with the newcomer's work within {JOIN_SECONDS:.0f} s")


def marks(events: list[Event], began: float) -> dict[str, float]:
    """Seconds since `began` of the first event of each kind."""
    found: dict[str, float] = {}
    for event in events:
        if isinstance(event.fact, Fetched) and event.fact.fragments and "caught_up" not in found:
            found |= {
                "caught_up": event.at - began,
                "fetch": event.fact.seconds,
                "fetched_mb": event.fact.num_bytes / 1e6,
            }
        elif isinstance(event.fact, JoinedRun):
            found.setdefault("joined", event.at - began)
        elif isinstance(event.fact, SentContribution):
            found.setdefault("sent", event.at - began)
        elif isinstance(event.fact, RoundCommitted) and event.peer_id in event.fact.contributors:
            found.setdefault("committed", event.at - began)
    if "fetch" not in found:
        raise SystemExit("the newcomer fetched nothing: the donors were still at version 0; run it again")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="From `peer join` to the first inner step.")
    parser.add_argument("--layers", type=int, default=8, help="layers of the model (default 8)")
    parser.add_argument("--width", type=int, default=512, help="d_model (default 512: 25 M parameters with 8 layers)")
    parser.add_argument("--context", type=int, default=64, help="tokens per sequence (default 64)")
    parser.add_argument("--fragments", type=int, default=4, help="P (default 4)")
    parser.add_argument("--donors", type=int, default=1, help="members that serve (default 1)")
    parser.add_argument("--joins", type=int, default=3, help="newcomers, one after the other (default 3)")
    parser.add_argument("--lab", help="Python file with a class Lab; needs root")
    parser.add_argument("--up", default="100", help="with --lab: Mbit/s each way, one number or one per peer")
    parser.add_argument("--rtt", type=float, default=30.0, help="with --lab: round trip in ms (default 30)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    if options.donors < 1 or options.joins < 1 or options.donors + 1 > MAX_HOSTS:
        parser.error(f"expected at least 1 donor and 1 join, and at most {MAX_HOSTS - 1} donors")
    up = numbers(options.up, options.donors + 1, "--up")
    shape = {"layers": options.layers, "width": options.width, "context": options.context}
    shape |= {"sync_every": 1, "fragments": options.fragments}
    imports = import_seconds()
    with home_lines(options.lab, up, up, options.rtt) as lab, real_swarm(lab, **shape) as swarm:
        donors = [swarm.start_member(company=False) for _ in range(options.donors)]
        for donor in donors:
            swarm.join_member(donor)
        for donor in donors:
            donor.tell(do="train", seconds=FIRST_STEPS_SECONDS)
        for donor in donors:
            donor.read()
        joins = [one_join(swarm, options.donors, swarm.folder / f"join{number}") for number in range(options.joins)]
    if lab is not None:
        for one in joins:
            # Later newcomers fetch more: fragments of which there was no commit yet need not be fetched.
            one["line_share"] = 8 * one["fetched_mb"] / min(up[-1], sum(up[:-1])) / one["fetch"]
    result = {
        "command": " ".join(["python -m benchmarks.bench_join", *sys.argv[1:]]),
        "machine": machine(),
        "line": "loopback" if lab is None else f"{options.up} Mbit/s, {options.rtt:g} ms",
        "donors": options.donors,
        "import_seconds": imports,
        "joins": joins,
        "median": {name: median(one[name] for one in joins) for name in joins[0]},
    }
    if options.json:
        print(json.dumps(result))
    else:
        print_result(result)
    return 0


def print_result(result: dict[str, Any]) -> None:
    """For people."""
    print(result["command"])
    print(", ".join(f"{key} {value}" for key, value in result["machine"].items()))
    print(f"{result['line']}, donors {result['donors']}, joins {len(result['joins'])}; seconds, median and range")
    names = {"caught_up": "anchors there", "sent": "first step sent", "committed": "first commit", "fetch": "fetching"}
    for name, words in names.items():
        times = [one[name] for one in result["joins"]]
        print(f"{words:18} {median(times):6.2f} ({min(times):.2f} to {max(times):.2f})")
    print("fetched            " + ", ".join(f"{one['fetched_mb']:.1f}" for one in result["joins"]) + " MB")
    if "line_share" in result["median"]:
        shares = ", ".join(f"{one['line_share']:.0%}" for one in result["joins"])
        print(f"of the line        {shares} while fetching")
    print("imports alone      " + ", ".join(f"{name} {took:.2f}" for name, took in result["import_seconds"].items()))


if __name__ == "__main__":
    sys.exit(main())
