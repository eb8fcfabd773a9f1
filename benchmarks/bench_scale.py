"""One round of a large swarm, by the real round machines over modelled lines: bytes, time, and the busiest leader.

    python -m benchmarks.bench_scale [--peers 32,128,512,2048,4096] [--values 4194304] [--mbit 50] [--json]

What is real: every peer's `RoundMachine` with its effects, and every frame's bytes. The real encoder makes the headers,
and the codec's sizes count the payloads. What is modelled: a line that sends one frame after the other at its upload
rate and takes them at five times that. The one-way latency is fixed. What is left out: tensors, computing, TCP,
libp2p's framing and handshakes, signatures (64 bytes that prove nothing), losses, churn. All peers offer within 0.4 s,
as peers of one speed do.

Every view holds everybody, as real ones do (`benchmarks/bench_records.py` measures what that costs).
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import itertools
import json
import math
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from averaging.codec.codec import make_codec
from averaging.rounds.leader_ranking import next_contributors
from averaging.rounds.machine_events import (
    Apply,
    ContributionArrived,
    Effect,
    Event,
    Heard,
    Ready,
    ReduceShard,
    ResultArrived,
    SendMessage,
    SendResult,
    SendShards,
    ShardReduced,
    Tick,
    View,
)
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.waits import Waits
from averaging.signing.round_signatures import Notary, Scope
from averaging.wire import frames
from averaging.wire.messages import Commit, Contribution, Message, Offer, Result
from benchmarks.machine import machine
from dht.ground.host import PeerId

LATENCY_SECONDS = 0.03
DOWNLOAD_RATIO = 5.0
OFFERS_WITHIN_SECONDS = 0.4
BLOCK_SIZE = 128
FRAME_OVERHEAD_BYTES = 4
SIGNATURE = bytes(64)
DIGEST = bytes(16)
CODEC = make_codec("int4", BLOCK_SIZE, kernels="numpy")
MOST_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Row:
    """One size of swarm. Bytes and messages are sent ones, per round.

    Attributes:
        round_seconds: from the last offer to the last peer that had the commit and all means.
    """

    peers: int
    bytes_per_peer: float
    bytes_of_values: float
    most_bytes: int
    leader_bytes: int
    leader_messages: int
    leader_received: int
    median_messages: float
    round_seconds: float
    real_seconds: float


class _Line:
    """Sends one frame after the other, takes one after the other."""

    __slots__ = ("free_down", "free_up")

    def __init__(self) -> None:
        self.free_up = self.free_down = 0.0


class ScaleSwarm:
    """Machines, lines and a queue of what happens when."""

    def __init__(self, num_peers: int, num_values: int, bits_per_second: float, seed: int) -> None:
        self.num_values, self.rate = num_values, bits_per_second
        self.random = random.Random(seed)
        self.names = sorted(
            PeerId("12D3KooW" + hashlib.sha256(f"{seed} {n}".encode()).hexdigest()[:44]) for n in range(num_peers)
        )
        self.now = 0.0
        self.queue: list[tuple[float, int, PeerId, Any]] = []
        self.order = itertools.count()
        self.lines = {name: _Line() for name in self.names}
        self.sent_bytes: Counter[PeerId] = Counter()
        self.sent_messages: Counter[PeerId] = Counter()
        self.received_messages: Counter[PeerId] = Counter()
        self.control_bytes: Counter[PeerId] = Counter()
        self.value_bytes = 0
        self.ticks: dict[PeerId, float] = {}
        self.commits: dict[PeerId, Commit] = {}
        self.missing: dict[PeerId, set[int]] = {}
        self.early: dict[PeerId, set[int]] = {name: set() for name in self.names}
        self.done_at: dict[PeerId, float] = {}
        self.leaders: set[PeerId] = set()
        self.frames: dict[int, tuple[Message, int]] = {}
        notary = Notary(Scope("scale", bytes(32)), lambda message: SIGNATURE, lambda *given: True)
        self.machines = {name: self._machine(name, notary) for name in self.names}
        self._set_views()

    def _machine(self, name: PeerId, notary: Notary) -> RoundMachine:
        found = RoundMachine(
            name,
            "scale",
            0,
            self.num_values,
            BLOCK_SIZE,
            Waits.with_bounds(60.0),
            notary,
        )
        found.anchor_digest = DIGEST
        return found

    def _set_views(self) -> None:
        view = View(tuple(self.names), (), len(self.names))
        for name in self.machines:
            self._step(name, view)

    # --------------------------------------------------------------------------------------------------------- time

    def run(self) -> None:
        """One round, until everybody has its commit and all means."""
        for name in self.names:
            self._at(self.random.uniform(0, OFFERS_WITHIN_SECONDS), name, self._offer(name))
        while self.queue and len(self.done_at) < len(self.names):
            self.now, _, name, what = heapq.heappop(self.queue)
            if self.now > MOST_SECONDS:
                raise RuntimeError(
                    f"{len(self.done_at)} of {len(self.names)} peers had the commit after {MOST_SECONDS:.0f} s"
                )
            if isinstance(what, Tick):
                if self.machines[name].next_time <= self.now:
                    self._step(name, what)
                else:
                    self._set_timer(name)
            elif isinstance(what, tuple):
                self._deliver(name, *what)
            else:
                self._step(name, what)

    def _at(self, when: float, name: PeerId, what: Any) -> None:
        heapq.heappush(self.queue, (when, next(self.order), name, what))

    def _offer(self, name: PeerId) -> Ready:
        return Ready(Offer(0, 0, 0, DIGEST, 0, 4096, 20, 1, self.rate, True))

    def _set_timer(self, name: PeerId) -> None:
        when = self.machines[name].next_time
        if when < math.inf and self.ticks.get(name, math.inf) != when:
            self.ticks[name] = when
            self._at(max(when, self.now), name, Tick())

    # -------------------------------------------------------------------------------------------------------- lines

    def _send(self, sender: PeerId, to: PeerId, message: Message, payload_bytes: int) -> None:
        key = id(message)
        if key not in self.frames:
            self.frames[key] = (message, len(frames.encode(message)))  # kept, so that no other gets its id
        num_bytes = self.frames[key][1] + payload_bytes + FRAME_OVERHEAD_BYTES
        if payload_bytes:
            self.value_bytes += payload_bytes
        else:
            self.control_bytes[sender] += num_bytes
        self.sent_bytes[sender] += num_bytes
        self.sent_messages[sender] += 1
        self.received_messages[to] += 1
        up, down = self.lines[sender], self.lines[to]
        # Control has a stream of its own: it shares the line, and does not wait for what is queued before it.
        seconds = 8 * num_bytes / self.rate
        if payload_bytes:
            up.free_up = max(self.now, up.free_up) + seconds
            sent_at = up.free_up
        else:
            up.free_up = max(self.now, up.free_up) + seconds
            sent_at = self.now + 2 * seconds
        down.free_down = max(sent_at, down.free_down) + seconds / DOWNLOAD_RATIO
        self._at(down.free_down + LATENCY_SECONDS, to, (sender, message))

    def _deliver(self, name: PeerId, sender: PeerId, message: Message) -> None:
        if isinstance(message, Contribution):
            self._step(name, ContributionArrived(sender, message.attempt, message.leader, message.shard))
        elif isinstance(message, Result):
            if message.shard in self.early[name]:
                return
            self.early[name].add(message.shard)
            for other in self.machines[name].next_to(message.shard, sender):
                self._send(name, other, message, CODEC.encoded_num_bytes(message.end - message.start))
            self._step(name, ResultArrived(sender, message.shard))
            self._check(name)
        else:
            self._step(name, Heard(sender, message))

    # ------------------------------------------------------------------------------------------------------- effects

    def _step(self, name: PeerId, event: Event) -> None:
        for effect in self.machines[name].step(event, self.now):
            self._perform(name, effect)
        self._set_timer(name)

    def _perform(self, name: PeerId, effect: Effect) -> None:
        if isinstance(effect, SendMessage):
            if isinstance(effect.message, Commit):
                self.leaders.add(name)
            self._send(name, effect.to, effect.message, 0)
        elif isinstance(effect, SendShards):
            plan = effect.plan
            for index, shard in enumerate(plan.shards):
                reducer = plan.roster[shard.reducer].peer_id
                if reducer != name:
                    header = Contribution(0, 0, plan.attempt, effect.leader, index, 1, shard.start, shard.end, 4096)
                    self._send(name, reducer, header, CODEC.encoded_num_bytes(shard.end - shard.start))
        elif isinstance(effect, ReduceShard):
            digest = self._digest("shard", effect.leader, effect.shard)
            self._at(
                self.now, name, ShardReduced(effect.plan.attempt, effect.leader, effect.shard, digest, effect.members)
            )
        elif isinstance(effect, SendResult):
            header = effect.result
            self.early[name].add(header.shard)
            for to in effect.to:
                self._send(name, to, header, CODEC.encoded_num_bytes(header.end - header.start))
            self._check(name)
        elif isinstance(effect, Apply):
            self.commits[name] = effect.commit
            self._check(name)

    def _digest(self, *of: object) -> bytes:
        return hashlib.sha256(repr(of).encode()).digest()[:16]

    def _check(self, name: PeerId) -> None:
        commit = self.commits.get(name)
        if commit is not None and name not in self.done_at:
            needed = {index for index, result in enumerate(commit.shards) if result.digest}
            if needed <= self.early[name]:
                self.done_at[name] = self.now
                self._give_household(name, commit)

    def _give_household(self, name: PeerId, commit: Commit) -> None:
        """As `Applying` does it once all results are here."""
        household = self.machines[name].household_of(commit)
        for index, shard in enumerate(commit.shards if household else ()):
            to, header = household[index % len(household)], Result(0, 0, index, shard.start, shard.end)
            self._send(name, to, header, CODEC.encoded_num_bytes(shard.end - shard.start))


def measure(num_peers: int, num_values: int, mbit: float, seed: int) -> Row:
    """One round of a swarm of this size."""
    began = time.perf_counter()
    swarm = ScaleSwarm(num_peers, num_values, 1e6 * mbit, seed)
    swarm.run()
    commit = next(iter(swarm.commits.values()))
    void = [result for commit in swarm.commits.values() for result in commit.shards if not result.digest]
    if void or len({commit.tokens for commit in swarm.commits.values()}) != 1:
        raise RuntimeError(f"{len(void)} void results; expected a whole round")
    if commit.tokens != 4096 * len(next_contributors("scale", 0, 0, swarm.names)):
        raise RuntimeError(f"{commit.tokens} tokens in the commit; expected those of all contributors")
    busiest = max(swarm.leaders, key=lambda name: swarm.control_bytes[name])
    return Row(
        num_peers,
        sum(swarm.sent_bytes.values()) / num_peers,
        swarm.value_bytes / num_peers,
        max(swarm.sent_bytes.values()),
        swarm.control_bytes[busiest],
        swarm.sent_messages[busiest],
        swarm.received_messages[busiest],
        statistics.median(swarm.sent_messages.values()),
        max(swarm.done_at.values()) - OFFERS_WITHIN_SECONDS,
        time.perf_counter() - began,
    )


def main() -> int:
    """Measure and print. Returns 1 when bytes per peer or the round's time grow more than they may."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", default="32,128,512,2048,4096", help="sizes of the swarm, from 2 to 8192")
    parser.add_argument("--values", type=int, default=1 << 22, help="of the fragment, 100 000 to 100 000 000")
    parser.add_argument("--mbit", type=float, default=50.0, help="upload of every peer, Mbit/s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        sizes = [int(text) for text in given.peers.split(",")]
    except ValueError:
        parser.error(f"--peers is {given.peers!r}; expected whole numbers with commas between them")
    if not all(2 <= size <= 8192 for size in sizes):
        parser.error(f"--peers is {given.peers!r}; expected sizes from 2 to 8192")
    if not 100_000 <= given.values <= 10**8 or not 0.1 <= given.mbit <= 10_000:
        parser.error("--values from 100 000 to 100 000 000, --mbit from 0.1 to 10 000 are expected")
    rows = []
    for size in sizes:
        rows.append(measure(size, given.values, given.mbit, given.seed))
        if not given.json:
            _print(rows[-1], is_first=len(rows) == 1)
    faults = _faults(rows)
    if given.json:
        facts = {"values": given.values, "mbit": given.mbit, "rows": [asdict(row) for row in rows]}
        print(json.dumps({**facts, "faults": faults, "machine": machine()}, indent=2))
    for fault in faults:
        print(f"bench_scale: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _faults(rows: list[Row]) -> list[str]:
    found = []
    first, last = rows[0], rows[-1]
    most = max(row.bytes_per_peer for row in rows)
    if most > 1.2 * first.bytes_per_peer:
        found.append(
            f"bytes per peer from {first.bytes_per_peer / 1e6:.2f} to {most / 1e6:.2f} MB; expected at most 20 % more"
        )
    allowed = first.round_seconds * math.log2(last.peers) / math.log2(first.peers)
    if last.round_seconds > allowed:
        found.append(
            f"a round of {last.peers} takes {last.round_seconds:.2f} s, of {first.peers} {first.round_seconds:.2f} s; "
            f"expected at most {allowed:.2f} s: growth with the logarithm of the peers"
        )
    return found


def _print(row: Row, *, is_first: bool) -> None:
    if is_first:
        print("  peers  MB/peer  values  busiest |  round s | leader MB   sent    got")
    print(
        f"{row.peers:7} {row.bytes_per_peer / 1e6:8.3f} {row.bytes_of_values / 1e6:7.3f} "
        f"{row.most_bytes / 1e6:8.2f} | {row.round_seconds:8.2f} | {row.leader_bytes / 1e6:9.2f} "
        f"{row.leader_messages:6} {row.leader_received:6}  ({row.real_seconds:.0f} s)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
