"""Real peers, one of which hinders: do the others keep their rounds, and does that one still contribute?

    python -m benchmarks.trouble.bench_hindrance [--arms nothing,limit,slow_limit] [--seconds 60] [--settle 30] [--json]

Two good peers and a third one, each a `peer join` with its network process and libp2p daemon. They run on loopback,
with a model of about a million parameters. The third is hindered in one way in each arm. In the arm `nothing` it is a
good one. So what a third process costs on a machine of few cores is in what the others are compared with:

- limit, slow_limit: `--upload-limit-mbit` 0.5 and 0.2, where a contribution takes 4 and 10 s;
- slow_download: `--download-limit-mbit` 1, which takes a minute for the state;
- slow_line: its daemon runs a tenth of the time, in turns of half a second, so that all it carries is late;
- busy: all its processes run a tenth of the time, in turns of a tenth of a second;
- suspended: all its processes sleep for 15 s and run for 15 s;
- half_open: after 10 s its processes never run again, and its connections stay open;
- full_disk: no file of its may grow any more;
- tiny_memory: its network process gets no more memory than it has.

Counted in the measured time are rounds of the good peers, which are commits with their own work. They are given per
minute and per inner steps that they took (a process that sleeps leaves them more of the machine). All commits are
counted too; more of them come about the more peers send at different times. So is work of the good peers that was
dropped or lost, and commits with work of the third. Returns 0 when the good peers kept 90 % of their rounds per minute
in each arm and lost nothing, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# The harness that starts peers is the tests'.
sys.path.insert(0, str(Path(__file__).parents[2]))

from averaging.rounds.round_facts import RoundCommitted, WorkLost
from benchmarks.machine import machine
from peer.events.peer_events import TrainingProgressed
from tests.kit.processes.process_swarm import PeerProcess, ProcessSwarm, process_swarm

SYNC_EVERY = 150
NUM_FRAGMENTS = 2
RUN = f"""
description = "one hinders"
seed = 1
[model]
num_layers = 2
d_model = 192
num_heads = 4
context = 32
[data]
[training]
batch_size = 1
accumulation_steps = 1
warmup_steps = 5
[averaging]
sync_every = {SYNC_EVERY}
num_fragments = {NUM_FRAGMENTS}
[network]
announce_seconds = 5.0
"""
JOIN_SECONDS = 300.0
LEAST_SHARE = 0.9

Hinder = Callable[[PeerProcess, threading.Event], None]
"""Given the third peer; returns when the event is set, at the latest."""


def _signal(peer: PeerProcess, pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        if peer.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _pids(peer: PeerProcess) -> list[int]:
    return [process.pid for process in peer.family()]


def _in_turns(asleep_seconds: float, awake_seconds: float, which: Callable[[PeerProcess], list[int]]) -> Hinder:
    """Processes that sleep and run in turns."""

    def hinder(peer: PeerProcess, stop: threading.Event) -> None:
        while not stop.is_set():
            pids = which(peer)
            _signal(peer, pids, signal.SIGSTOP)
            stop.wait(asleep_seconds)
            _signal(peer, pids, signal.SIGCONT)
            stop.wait(awake_seconds)

    return hinder


def _limited(kind: int, most: Callable[[int], int], which: Callable[[PeerProcess], list[int]]) -> Hinder:
    """Processes that get no more of something; `most` is told a process id."""

    def hinder(peer: PeerProcess, _stop: threading.Event) -> None:
        for pid in which(peer):
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, kind, (most(pid), most(pid)))

    return hinder


def _memory_of(pid: int) -> int:
    return resource.getpagesize() * int(Path(f"/proc/{pid}/statm").read_text().split()[0])


def _half_open(peer: PeerProcess, stop: threading.Event) -> None:
    stop.wait(10.0)
    pids = _pids(peer)
    _signal(peer, pids, signal.SIGSTOP)
    stop.wait()
    _signal(peer, pids, signal.SIGCONT)


def _nothing(_peer: PeerProcess, _stop: threading.Event) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Arm:
    """How the third peer is started, and what is done to it."""

    flags: tuple[str, ...] = ()
    hinder: Hinder = _nothing


ARMS = {
    "nothing": Arm(),
    "limit": Arm(("--upload-limit-mbit", "0.5")),
    "slow_limit": Arm(("--upload-limit-mbit", "0.2")),
    "slow_download": Arm(("--download-limit-mbit", "1")),
    "slow_line": Arm(hinder=_in_turns(0.45, 0.05, lambda peer: [peer.daemon().pid])),
    "busy": Arm(hinder=_in_turns(0.09, 0.01, _pids)),
    "suspended": Arm(hinder=_in_turns(15.0, 15.0, _pids)),
    "half_open": Arm(hinder=_half_open),
    "full_disk": Arm(hinder=_limited(resource.RLIMIT_FSIZE, lambda pid: 0, _pids)),
    "tiny_memory": Arm(hinder=_limited(resource.RLIMIT_AS, _memory_of, lambda peer: [peer.network().pid])),
}


@dataclass(slots=True)
class Verdict:
    """What happened in the measured time of one arm; the good peers' figures are means over both."""

    arm: str
    seconds: float
    rounds_per_minute: float
    """Commits with the good peer's own work."""
    rounds_per_interval: float
    """The same of a fragment for every `SYNC_EVERY` inner steps."""
    commits_per_minute: float
    good_together: float
    """Share of the commits with work of both good peers."""
    with_third: float
    """Share of the commits with work of the third."""
    lost: int
    is_third_alive: bool


def judge(arm: str, seconds: float, good: Sequence[PeerProcess], third: PeerProcess, marks: Sequence[int]) -> Verdict:
    """Fold the events since `marks`."""
    commits: dict[tuple[int, int], set[str]] = {}
    applied, own, lost, steps = 0, 0, 0, 0
    for peer, mark in zip(good, marks, strict=True):
        events = peer.events()
        for event in events[mark:]:
            if isinstance(event.fact, RoundCommitted):
                applied += 1
                own += peer.peer_id in event.fact.contributors
                commits.setdefault((event.fact.fragment, event.fact.version), set()).update(event.fact.contributors)
            lost += isinstance(event.fact, WorkLost)
        progress = [event.fact.inner_steps for event in events[mark:] if isinstance(event.fact, TrainingProgressed)]
        before = [event.fact.inner_steps for event in events[:mark] if isinstance(event.fact, TrainingProgressed)]
        steps += max(progress, default=0) - max(before, default=0)
    both = {peer.peer_id for peer in good}
    return Verdict(
        arm,
        round(seconds, 1),
        round(own / len(good) / seconds * 60, 2),
        round(own / NUM_FRAGMENTS / max(1.0, steps / SYNC_EVERY), 3),
        round(applied / len(good) / seconds * 60, 2),
        round(sum(both <= found for found in commits.values()) / max(1, len(commits)), 2),
        round(sum(third.peer_id in found for found in commits.values()) / max(1, len(commits)), 2),
        lost,
        third.is_alive,
    )


def measure(swarm: ProcessSwarm, good: Sequence[PeerProcess], arm: str, settle: float, seconds: float) -> Verdict:
    """Start a third peer, hinder it, and look at the good ones."""
    third = swarm.start(f"third-{arm}", *ARMS[arm].flags, peers=[peer.address for peer in good])
    third.wait_joined(seconds=JOIN_SECONDS)
    stop = threading.Event()
    hindering = threading.Thread(target=ARMS[arm].hinder, args=(third, stop))
    hindering.start()
    try:
        time.sleep(settle)
        marks, began = [peer.mark() for peer in good], time.monotonic()
        time.sleep(seconds)
        return judge(arm, time.monotonic() - began, good, third, marks)
    finally:
        stop.set()
        hindering.join()
        third.kill_all()


def faults_of(verdicts: Sequence[Verdict]) -> list[str]:
    """In sentences; empty when nobody was hindered. The first verdict is that of a good third peer."""
    usual, found = verdicts[0], []
    for one in verdicts[1:]:
        if one.rounds_per_minute < LEAST_SHARE * usual.rounds_per_minute:
            found.append(f"{one.arm}: {one.rounds_per_minute:.1f} rounds/min, {usual.rounds_per_minute:.1f} without")
        if one.lost:
            found.append(f"{one.arm}: work of the good peers was lost {one.lost} times")
    return found


def main() -> int:
    """Start, hinder, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arms", default=",".join(ARMS), help="names with commas between them; `nothing` comes first")
    parser.add_argument("--seconds", type=float, default=60.0, help="measured in each arm, from 5 to 3600")
    parser.add_argument("--settle", type=float, default=30.0, help="before that, from 0 to 600")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    arms = [arm for arm in dict.fromkeys(given.arms.split(",")) if arm != "nothing"]
    if unknown := [arm for arm in arms if arm not in ARMS]:
        parser.error(f"--arms has {', '.join(map(repr, unknown))}; expected some of {', '.join(ARMS)}")
    if not 5 <= given.seconds <= 3600 or not 0 <= given.settle <= 600:
        parser.error("--seconds from 5 to 3600 and --settle from 0 to 600 are expected")
    verdicts: list[Verdict] = []
    with process_swarm(RUN) as swarm:
        good = [swarm.start("good0", has_record=True)]
        good[0].wait_joined(seconds=JOIN_SECONDS)
        good.append(swarm.start("good1", peers=[good[0].address]))
        good[1].wait_joined(seconds=JOIN_SECONDS)
        for arm in ("nothing", *arms):
            verdicts.append(measure(swarm, good, arm, given.settle, given.seconds))
            print(f"{arm}: {asdict(verdicts[-1])}", file=sys.stderr, flush=True)
    faults = faults_of(verdicts)
    if given.json:
        print(json.dumps({"arms": [asdict(one) for one in verdicts], "faults": faults, "machine": machine()}, indent=2))
    else:
        print("python -m benchmarks.trouble.bench_hindrance", *sys.argv[1:])
        print(machine())
        print(f"{'third peer':14} rounds/min  per interval  commits/min  both good  with third  lost  third")
        for one in verdicts:
            print(
                f"{one.arm:14} {one.rounds_per_minute:10.1f} {one.rounds_per_interval:13.2f} "
                f"{one.commits_per_minute:12.1f} {one.good_together:10.0%} {one.with_third:11.0%} {one.lost:5}  "
                f"{'lives' if one.is_third_alive else 'has ended'}"
            )
        print("good: nobody was hindered" if not faults else "bad: " + "; ".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
