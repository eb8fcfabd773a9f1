"""Many real peers on one machine for some minutes: do their rounds go on without failures?

    python -m benchmarks.bench_swarm [--peers 24] [--minutes 10] [--sync-every 400] [--json]
    python -m benchmarks.bench_swarm --sites east,west --peers 4 --minutes 2

Every peer is a `peer join` with its network process and its libp2p daemon, on loopback, with a model of 33 thousand
parameters. They start two by two; the measured time begins when all are members. Then it is counted: commits, how many
of the peers were in them, attempts that anybody gave up, refusals, and peers that ended. It is checked whether all
peers that applied a commit have the same digest after it. Returns 0 when there were rounds and nothing failed, else 1.

With `--sites` the peers are dealt out to sites. `abroad` are the bytes that they sent in rounds to peers of other
sites, per commit.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

# The harness that starts peers is the tests'.
sys.path.insert(0, str(Path(__file__).parent.parent))

from averaging.rounds.round_facts import AppliedCommit, AttemptEnded, RoundCommitted, WorkReturned
from benchmarks.machine import machine
from peer.events.peer_events import RefusedPeer, TrainingProgressed
from tests.kit.processes.process_swarm import PeerProcess, ProcessSwarm, process_swarm

RUN = """
description = "many peers"
seed = 1
[model]
num_layers = 2
d_model = 32
num_heads = 2
context = 32
[data]
source = "text:"
[training]
batch_size = 1
warmup_steps = 5
[averaging]
sync_every = {sync_every}
num_fragments = 2
[network]
announce_seconds = 10.0
"""
JOIN_SECONDS = 300.0
AT_ONCE = 2
"""Peers that start together: each trainer imports torch, and the machine has few cores."""
LEAST_SHARE = 0.5
"""Of the peers must be in the mean commit: rounds of a few would be no rounds of the swarm."""


@dataclass(slots=True)
class Verdict:
    """What happened between the last join and the end."""

    peers: int
    minutes: float
    commits: int = 0
    mean_contributors: float = 0.0
    abandoned: int = 0
    refused: int = 0
    returned: int = 0
    ended: int = 0
    differing: int = 0
    abroad_bytes_per_commit: float = 0.0
    median_round_seconds: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """In sentences; empty when all went well."""
        found = []
        if not self.commits:
            found.append("no round was committed")
        if self.mean_contributors < LEAST_SHARE * self.peers:
            found.append(f"{self.mean_contributors:.1f} of {self.peers} peers were in the mean commit")
        for count, what in (
            (self.abandoned, "attempts were given up"),
            (self.refused, "refusals"),
            (self.ended, "peers ended"),
            (self.differing, "commits after which peers had different digests"),
        ):
            if count:
                found.append(f"{count} {what}")
        return found


def start_all(swarm: ProcessSwarm, count: int, sites: list[str]) -> list[PeerProcess]:
    """All peers, each a member; the first alone, because the others dial it."""
    peers: list[PeerProcess] = []
    while len(peers) < count:
        batch = []
        for number in range(len(peers), min(len(peers) + (AT_ONCE if peers else 1), count)):
            site = ["--site", sites[number % len(sites)]] if sites else []
            known = [peers[0].address] if peers else []
            batch.append(swarm.start(f"p{number}", *site, peers=known, has_record=not peers))
        for peer in batch:
            peer.wait_joined(seconds=JOIN_SECONDS)
        peers += batch
        print(f"{len(peers)} of {count} peers have joined", file=sys.stderr, flush=True)
    return peers


def judge(peers: list[PeerProcess], marks: list[int], abroad_before: list[int], minutes: float) -> Verdict:
    """Fold the events of the measured time."""
    verdict = Verdict(len(peers), minutes)
    contributors: dict[tuple[int, int], set[str]] = {}
    digests: dict[tuple[int, int], set[str]] = {}
    reasons: Counter[str] = Counter()
    seconds: list[float] = []
    abroad = 0
    for peer, mark, before in zip(peers, marks, abroad_before, strict=True):
        events = peer.events()[mark:]
        verdict.ended += not peer.is_alive
        for event in events:
            if isinstance(event.fact, RoundCommitted):
                key = (event.fact.fragment, event.fact.version)
                contributors.setdefault(key, set()).update(event.fact.contributors)
                if event.fact.seconds > 0:
                    seconds.append(event.fact.seconds)
            elif isinstance(event.fact, AppliedCommit):
                digests.setdefault((event.fact.fragment, event.fact.version), set()).add(event.fact.digest)
            elif isinstance(event.fact, AttemptEnded) and event.fact.new_leader is None:
                verdict.abandoned += 1
                reasons[_plain(event.fact.reason)] += 1
            elif isinstance(event.fact, RefusedPeer):
                verdict.refused += 1
                reasons[_plain(event.fact.reason)] += 1
            verdict.returned += isinstance(event.fact, WorkReturned)
        abroad += abroad_of(peer) - before
    verdict.commits = len(contributors)
    verdict.mean_contributors = sum(map(len, contributors.values())) / max(1, len(contributors))
    verdict.differing = sum(len(found) > 1 for found in digests.values())
    verdict.abroad_bytes_per_commit = abroad / max(1, len(contributors))
    verdict.median_round_seconds = sorted(seconds)[len(seconds) // 2] if seconds else 0.0
    verdict.reasons = dict(reasons.most_common(10))
    return verdict


def abroad_of(peer: PeerProcess) -> int:
    """Bytes to other sites so far, as last reported."""
    return max(
        (event.fact.sent_abroad_bytes for event in peer.events() if isinstance(event.fact, TrainingProgressed)),
        default=0,
    )


def _plain(reason: str) -> str:
    return re.sub(r"[-+]?\d[\d.,]*", "#", re.sub(r"12D3KooW\w+", "a peer", reason))[:90]


def main() -> int:
    """Start, wait, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", type=int, default=24, help="from 2 to 64")
    parser.add_argument("--minutes", type=float, default=10.0, help="of measuring, above 0")
    parser.add_argument("--sync-every", type=int, default=400, help="inner steps between two sends of a fragment")
    parser.add_argument("--sites", default="", help="names with commas between them")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sites = [name for name in given.sites.split(",") if name]
    if not 2 <= given.peers <= 64 or not 0 < given.minutes <= 1440:
        parser.error("--peers from 2 to 64 and --minutes above 0 and at most 1440 are expected")
    if given.sync_every < 1:
        parser.error("--sync-every from 1 is expected")
    if any(not re.fullmatch("[a-z0-9-]{1,40}", name) for name in sites):
        parser.error(f"--sites is {given.sites!r}; expected names of a-z, 0-9 and '-' with commas between them")
    run = RUN.format(sync_every=given.sync_every)
    with process_swarm(run) as swarm:
        peers = start_all(swarm, given.peers, sites)
        marks, before = [peer.mark() for peer in peers], [abroad_of(peer) for peer in peers]
        end = time.monotonic() + 60 * given.minutes
        while time.monotonic() < end and all(peer.is_alive for peer in peers):
            time.sleep(1.0)
        verdict = judge(peers, marks, before, given.minutes)
    faults = verdict.faults()
    if given.json:
        print(json.dumps({**asdict(verdict), "faults": faults, "machine": machine()}, indent=2))
    else:
        for name, value in asdict(verdict).items():
            print(f"{name:24} {value:.1f}" if isinstance(value, float) else f"{name:24} {value}")
        print("good: rounds went on and nothing failed" if not faults else "bad: " + "; ".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
