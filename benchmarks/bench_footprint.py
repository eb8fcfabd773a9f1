"""Peak memory of a peer's processes while it trains and takes part in rounds, for models of 25 M and 250 M parameters.

    python -m benchmarks.bench_footprint [--models 25,250] [--rounds 2] [--json]

Two real peers over loopback: one trains the built-in GPT with AdamW, the other computes nothing, in steps as long as
the trainer's first ones. H is P, so every step sends a fragment. When every fragment has had so many common rounds,
peaks are read from /proc (Linux). Shared memory, the mailbox, counts in both processes that map it; what is a process's
own is told apart. A copy is 4 bytes per parameter, MB are 2^20 bytes. The target: the network process takes at most
four copies and 150 MB. With 250 M parameters both peers together take about 20 GB and some minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.machine import machine
from benchmarks.members.member_process import MemberProcess
from benchmarks.members.real_swarm import real_swarm

MODELS = {"25": {"layers": 8, "width": 512}, "250": {"layers": 20, "width": 1024}}
MB = 2.0**20
TARGET_COPIES, TARGET_MB = 4, 150
STEPS_ALONE_SECONDS = 5
NEEDED_BYTES_PER_PARAMETER = 80
"""Both peers: parameters, gradients, moments, references, mailboxes and what passes through."""
BARE = {
    "numpy": "import numpy",
    "network process": (
        "from dht.p2pd.lazy_hivemind import allow_parts_of_hivemind; allow_parts_of_hivemind(); "
        "import peer.network.process.main, peer.network.process.network_side"
    ),
    "trainer process": "import peer.cli.app, peer.join.join",
}


def bare_mb() -> dict[str, float]:
    """Peak resident MB of processes that only import."""
    found = {}
    for name, imports in BARE.items():
        # Not getrusage: it counts what this process had when it started the other.
        program = f"{imports}; print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        found[name] = int(ended.stdout.split()[-1]) / 1024
    return found


def available_bytes() -> int:
    """Memory that can be taken now (Linux)."""
    with open("/proc/meminfo") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable"))


def measure(model: dict[str, int], num_rounds: int, num_fragments: int) -> dict[str, Any]:
    """Peaks of one peer's processes."""
    shape = {**model, "context": 16, "sync_every": num_fragments, "fragments": num_fragments}
    with real_swarm(None, **shape) as swarm:
        trainer = swarm.start_member(company=False)
        swarm.join_member(trainer)
        company = swarm.start_member(company=True)
        # As slow as the trainer: what it contributes would be too old among the rounds of a much faster one.
        alone = trainer.ask(do="train", seconds=STEPS_ALONE_SECONDS)
        swarm.join_member(company)
        company.ask(do="company", step_seconds=min(alone["step_seconds"]))
        trained = trainer.ask(do="train", seconds=0, commits=num_rounds * num_fragments)
        processes = usage(trainer)
        num_parameters = trained["num_parameters"]
    copy_mb = 4 * num_parameters / MB
    found = {}
    for name, process in processes.items():
        peak = process["peak_mb"]
        found[name] = {**process, "peak_copies": peak / copy_mb}
    network = found["network"]["peak_mb"]
    return {
        "num_parameters": num_parameters,
        "copy_mb": copy_mb,
        "commits": trained["commits"],
        "processes": found,
        "network_beyond_four_copies_mb": network - TARGET_COPIES * copy_mb,
        "target_met": network <= TARGET_COPIES * copy_mb + TARGET_MB,
    }


def usage(member: MemberProcess) -> dict[str, dict[str, float]]:
    """Memory of a peer's processes by role."""
    names = ("peak_mb", "own_mb", "shared_mb")
    return {one["role"]: {name: one[name] for name in names} for one in member.ask(do="usage")["processes"]}


def main() -> int:
    parser = argparse.ArgumentParser(description="Peak memory of a peer's processes.")
    parser.add_argument("--models", default="25,250", help="millions of parameters: 25, 250 or both (default)")
    parser.add_argument("--rounds", type=int, default=2, help="common rounds of every fragment (default 2)")
    parser.add_argument("--fragments", type=int, default=4, help="P (default 4)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    names = options.models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"--models {','.join(unknown)}: expected some of {', '.join(MODELS)}")
    if options.rounds < 1 or not 1 <= options.fragments <= 32:
        parser.error("expected at least 1 round and 1 to 32 fragments")
    if not sys.platform.startswith("linux"):
        parser.error(f"memory is read from /proc; expected Linux, this is {sys.platform}")
    bare, found, left_out = bare_mb(), [], []
    command = " ".join(["python -m benchmarks.bench_footprint", *sys.argv[1:]])
    if not options.json:
        print(command)
        print(", ".join(f"{key} {value}" for key, value in machine().items()))
        print("imports alone      " + ", ".join(f"{name} {size:.0f} MB" for name, size in bare.items()), flush=True)
    for name in names:
        needed = int(name) * 1_000_000 * NEEDED_BYTES_PER_PARAMETER
        if (available := available_bytes()) < needed:
            left_out.append(
                f"{name} M parameters need about {needed / 1e9:.0f} GB for both peers; {available / 1e9:.0f} GB are "
                "free; this model was left out"
            )
            continue
        found.append(measure(MODELS[name], options.rounds, options.fragments))
        if not options.json:
            print_model(found[-1])
    if options.json:
        print(json.dumps({"command": command, "machine": machine(), "bare_mb": bare, "models": found}))
    for sentence in left_out:
        print(sentence, file=sys.stderr)
    return 1 if left_out else 0


def print_model(one: dict[str, Any]) -> None:
    """One model for people."""
    print(f"{one['num_parameters']} parameters, a copy is {one['copy_mb']:.0f} MB, after {one['commits']} commits")
    for name, process in one["processes"].items():
        print(
            f"  {name:16} peak {process['peak_mb']:6.0f} MB = {process['peak_copies']:.2f} copies; now "
            f"{process['own_mb']:.0f} MB of its own and {process['shared_mb']:.0f} MB shared"
        )
    verdict = "met" if one["target_met"] else "NOT met"
    beyond = one["network_beyond_four_copies_mb"]
    print(f"  network process  four copies and {beyond:.0f} MB; the target of {TARGET_MB} MB is {verdict}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
