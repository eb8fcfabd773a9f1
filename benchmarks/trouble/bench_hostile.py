"""What hostile peers cost the others: a quarter of a swarm in virtual time, one kind of harm after the other.

    python -m benchmarks.trouble.bench_hostile [--kinds sign_flipped,wrong_mean] [--combine centered_clip] [--minutes 4]
        [--sybils N] [--json]

12 honest peers train the built-in GPT on a made-up language, with 4 hostile ones beside them, and without. Each
simulation is a process of its own; its peak of memory is that of the process, all 16 peers together. Two figures are
compared at equal tokens of the honest peers. One is the validation loss of the anchors at the end, with that of the run
without hostile peers. The other is how many rounds with work of an honest peer were committed. `--sybils N` splits the
4 into N identities of the same speed together.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from typing import Any, get_args

from averaging.rounds.round_facts import RoundCommitted
from benchmarks.machine import machine
from peer.events.peer_events import Event, LeftRun, RefusedPeer
from tests.simulator.scenarios.scenario import Scenario
from tests.simulator.scenarios.schedule import spec_of
from tests.simulator.scenarios.spec import LieKind
from tests.simulator.simulation import simulate

NUM_HONEST, NUM_HOSTILE = 12, 4
HOSTILE_SCALES = {"forged_tokens": 100.0}
KINDS: tuple[str, ...] = (*get_args(LieKind), "scaled_1000")
LARGEST_LOSS, LEAST_RATE = 0.03, 0.9


def scenario_of(kind: str, options: argparse.Namespace) -> Scenario:
    """A quarter of `kind` beside the honest; `honest`: nobody beside them; `all_honest`: a quarter of honest peers."""
    averaging: dict[str, Any] = {
        "sync_every": 16,
        "num_fragments": 2,
        "round_deadline_seconds": 30.0,
        "combine": options.combine,
    }
    if options.averaging:
        averaging |= json.loads(options.averaging)
    groups: dict[str, Any] = {"honest": {"count": NUM_HONEST, "step_seconds": [0.9, 1.3]}}
    if kind == "wrong_state":
        # Somebody must join while the hostile ones are there.
        groups["honest"] = {**groups["honest"], "count": NUM_HONEST - 2}
        groups["late"] = {"count": 2, "step_seconds": [0.9, 1.3], "joins_at_minute": 0.3 * options.minutes}
    if kind != "honest":
        count = options.sybils or NUM_HOSTILE
        slowness = count / NUM_HOSTILE
        # Whoever wants to reduce much needs a fast line.
        upload = 100 if kind == "wrong_mean" else 20
        group: dict[str, Any] = {"count": count, "upload_mbit_per_second": upload}
        group["step_seconds"] = [0.9 * slowness, 1.3 * slowness]
        if kind != "all_honest":
            name = "scaled" if kind == "scaled_1000" else kind
            scale = 1000.0 if kind == "scaled_1000" else HOSTILE_SCALES.get(kind, 10.0)
            group |= {"lie": name, "lie_scale": options.scale or scale}
        groups["hostile"] = group
    return Scenario.model_validate(
        {
            "duration_minutes": options.minutes,
            "workload": {"kind": "gpt"},
            "model": {"num_layers": 1, "d_model": 80, "num_heads": 2, "vocab_size": 32, "context": 16},
            "training": {"batch_size": 4, "learning_rate": 5e-3, "warmup_steps": 10},
            "averaging": averaging,
            "groups": groups,
        }
    )


def run_one(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """One simulation, in this process."""
    scenario = scenario_of(kind, options)
    num_first = sum(group.count for name, group in scenario.groups.items() if name != "hostile")
    ids: dict[int, str] = {}
    rounds: set[tuple[int, int]] = set()
    parts: dict[str, set[tuple[int, int]]] = {}
    left_out: dict[str, int] = {}
    reasons: dict[str, int] = {}

    def note(index: int, event: Event) -> None:
        ids[index] = event.peer_id
        if index >= num_first:
            return
        if isinstance(event.fact, RoundCommitted):
            key = (event.fact.fragment, event.fact.version)
            rounds.add(key)
            for peer_id in event.fact.contributors:
                parts.setdefault(peer_id, set()).add(key)
        elif isinstance(event.fact, RefusedPeer):
            if event.fact.left_out_until is not None:
                left_out[event.fact.remote] = left_out.get(event.fact.remote, 0) + 1
            else:
                reasons[event.fact.reason[:60]] = reasons.get(event.fact.reason[:60], 0) + 1
        elif isinstance(event.fact, LeftRun):
            raise RuntimeError(f"peer {index} left: {event.fact.reason}")

    result = simulate(spec_of(scenario, options.seed), note)
    honest = {ids[index] for index in range(num_first)}
    return {
        "kind": kind,
        "loss": result.loss_last,
        "rounds": len(rounds),
        "honest_parts": sum(len(parts.get(peer_id, ())) for peer_id in honest),
        "honest_tokens": sum(group.tokens for group in result.groups if group.name != "hostile"),
        "hostile_left_out": len(set(left_out) - honest),
        "honest_left_out": len(set(left_out) & honest),
        "reasons": dict(sorted(reasons.items(), key=lambda item: -item[1])[:3]),
        "violations": list(result.violations[:3]),
        "bytes_up": sum(group.bytes_up for group in result.groups if group.name == "honest"),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "seconds": result.real_seconds,
    }


def in_process(kind: str, argv: list[str]) -> dict[str, Any]:
    """`run_one` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.trouble.bench_hostile", *argv, "--one", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"kind": kind, "failed": lines[-1] if lines else f"ended with {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared(found: dict[str, Any], clean: dict[str, Any]) -> dict[str, Any]:
    """With what it is at the honest peers alone."""
    if "failed" in found:
        return {**found, "holds": False}
    tokens = found["honest_tokens"] / clean["honest_tokens"]
    loss, rate = found["loss"] / clean["loss"] - 1, found["honest_parts"] / clean["honest_parts"] / tokens
    holds = loss <= LARGEST_LOSS and rate >= LEAST_RATE and not found["violations"] and not found["honest_left_out"]
    memory = found["peak_mib"] / clean["peak_mib"]
    return {**found, "loss_more": loss, "round_rate": rate, "memory": memory, "holds": holds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--combine", default="centered_clip")
    parser.add_argument("--averaging", default="", help="further fields of the manifest's section, as JSON")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sybils", type=int, default=0)
    parser.add_argument("--scale", type=float, default=0.0, help="of all lies; default: 10, of forged tokens 100")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(options.one, options)))
        return
    wanted = options.kinds.split(",")
    if unknown := [kind for kind in wanted if kind not in (*KINDS, "all_honest")]:
        parser.error(f"--kinds names {unknown[0]!r}; expected some of {', '.join((*KINDS, 'all_honest'))}")
    argv = sys.argv[1:]
    clean = in_process("honest", argv)
    if "failed" in clean:
        raise SystemExit(clean["failed"])
    command = "python -m benchmarks.trouble.bench_hostile " + " ".join(argv)
    if not options.json:
        print(command)
        print(", ".join(f"{name} {value}" for name, value in machine().items()))
        print(
            f"without hostile peers: loss {clean['loss']:.4f}, {clean['rounds']} rounds, "
            f"{clean['peak_mib']:.0f} MiB, {clean['bytes_up'] / 1e6:.2f} MB sent by each"
        )
        print("kind            loss     more  round rate  memory  left out  holds")
    results = []
    for kind in wanted:
        one = compared(in_process(kind, argv), clean)
        results.append(one)
        if options.json:
            continue
        if "failed" in one:
            print(f"{kind:14}  FAILED: {one['failed']}", flush=True)
            continue
        wrong = f", {one['honest_left_out']} honest" if one["honest_left_out"] else ""
        print(
            f"{kind:14}  {one['loss']:.4f} {one['loss_more']:+7.1%}  {one['round_rate']:9.1%} {one['memory']:7.2f}  "
            f"{one['hostile_left_out']} of {options.sybils or NUM_HOSTILE}{wrong}  {'yes' if one['holds'] else 'NO'}"
            + (f"  {one['violations'][0][:100]}" if one["violations"] else ""),
            flush=True,
        )
    if options.json:
        print(json.dumps({"command": command, "machine": machine(), "clean": clean, "results": results}))


if __name__ == "__main__":
    main()
