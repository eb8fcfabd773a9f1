"""What peer records cost each member of a swarm of any size: requests and bytes per minute, and who is seen.

    python -m benchmarks.bench_records [--peers 32,128,256,512,1024,2048,4096] [--measured 4] [--json]

What is real: `Membership` of the measured peers, `HivemindStore`, hivemind's DHTNode with its routing table and its
searches, gate, validation, and holders' storage with its limits. So are signed records of a peer with four fragments,
and every message in its encoded form. What is not: the line (a call is answered at once, and costs its message's bytes
without libp2p's framing, about 1 KiB). Time is not: looks follow each other at once, and figures are per minute of two
looks and one announcement every 10 s. Nor are joining (routing tables are filled beforehand) and churn. A look-up of a
key's holders is believed for 300 s, or 1500 s for keys that are read in turn. Those of the first turn are spread over
that. Measured are usual members: one in 2^level is a beacon, which publishes under a second key, 30 requests a minute
more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass

from benchmarks.machine import machine
from benchmarks.scenes.record_swarm import QuietHost, RecordSwarm, Traffic, settle
from dht.admission.handshake_frames import AccessRule
from dht.ground.store import LEVEL_0_KEYS
from dht.kademlia.dht_guards import key_id_of
from dht.kademlia.dht_node import GLANCE_HOLDER_LIFE_SECONDS, HOLDER_LIFE_SECONDS
from dht.records.key_levels import is_beacon, key_at, peers_key, turn_seconds
from peer.network.membership.membership import Membership
from peer.network.membership.run_handshake_policy import RunHandshakePolicy

ANNOUNCE_SECONDS = 10.0
LOOK_SECONDS = ANNOUNCE_SECONDS / 2
MOST_GROWTH = 1.2


@dataclass(frozen=True, slots=True)
class Row:
    """One size of swarm; medians over the measured peers, per minute.

    Attributes:
        requests, lookups: calls to others; `requests` has the look-ups, spread over the time that they are believed;
            the bytes are those of the other calls.
        first_look: calls of the first look of a peer that knows nobody, look-ups included.
        seen_first, seen: members in the view after that look, and after a turn.
    """

    peers: int
    level: int
    requests: float
    lookups: float
    received_bytes: float
    sent_bytes: float
    first_look: float
    seen_first: int
    seen: int
    turn_seconds: float
    record_bytes: int
    real_seconds: float


async def measure(num_peers: int, num_measured: int, seed: int) -> Row:
    """A swarm of this size, some of whose members are measured from their first look on."""
    began = time.perf_counter()
    swarm = RecordSwarm(num_peers, seed)
    await swarm.start()
    usual = [
        number
        for number, identity in enumerate(swarm.identities)
        if not (swarm.level and is_beacon(identity.peer_id, swarm.level))
    ]
    numbers = random.Random(seed).sample(usual, min(num_measured, len(usual)))
    found = [await _measure_one(swarm, number) for number in numbers]
    middle = [statistics.median(values) for values in zip(*found, strict=True)]
    requests, lookups, received, sent, first_look, seen_first, seen = middle
    if seen < num_peers - 1:
        raise RuntimeError(f"{seen:.0f} of {num_peers - 1} members seen after a turn; expected all")
    return Row(
        num_peers,
        swarm.level,
        requests,
        lookups,
        received,
        sent,
        first_look,
        int(seen_first),
        int(seen),
        turn_seconds(swarm.level),
        swarm.record_bytes,
        time.perf_counter() - began,
    )


async def _measure_one(swarm: RecordSwarm, number: int) -> list[float]:
    identity, line = swarm.identities[number], swarm.line_of(number)
    described = swarm.record_of(identity)
    membership = Membership(
        identity,
        QuietHost(identity.peer_id),  # type: ignore[arg-type]
        swarm.stores[number],
        RunHandshakePolicy(AccessRule(swarm.run_id, described.manifest_hash, "0.1.0"), identity.peer_id, "trainer"),
        lambda: described,
        described.run_id,
        described.manifest_hash,
        site=described.site,
        announce_seconds=ANNOUNCE_SECONDS,
        wall_clock=time.time,
        randomness=random.Random(number),
        on_view=lambda: None,
        report=lambda fact: None,
        on_refused=lambda peer_id, reason: None,
        verified=swarm.verified,
    )
    line.traffic = Traffic()
    await membership.look()
    first_look, seen_first = line.traffic.requests.total(), len(membership.members())
    num_looks = max(12, round(turn_seconds(swarm.level) / LOOK_SECONDS))
    for _ in range(num_looks // 2):
        await _ten_seconds(membership)
    lookups = _lookups_per_minute(swarm, number, line.traffic)
    line.traffic = Traffic()
    for _ in range(num_looks // 2):
        await _ten_seconds(membership)
    minutes = num_looks // 2 * ANNOUNCE_SECONDS / 60
    kept = sum(count for kind, count in line.traffic.requests.items() if kind != "lookup") / minutes
    return [
        kept + lookups,
        lookups,
        line.traffic.received_bytes / minutes,
        line.traffic.sent_bytes / minutes,
        first_look,
        seen_first,
        len(membership.members()),
    ]


async def _ten_seconds(membership: Membership) -> None:
    await membership.announce()
    await membership.look()
    await membership.look()
    await settle()


def _lookups_per_minute(swarm: RecordSwarm, number: int, traffic: Traffic) -> float:
    """Each key's look-up once in the time for which it is believed."""
    own = key_at(swarm.identities[number].peer_id, swarm.level)
    closely = {key_id_of(peers_key(swarm.run_id, key)) for key in ((own,) if own.level else LEVEL_0_KEYS)}
    closely.add(key_id_of(peers_key(swarm.run_id, key_at(swarm.identities[number].peer_id, 0))))
    return sum(
        60 * count / (HOLDER_LIFE_SECONDS if key_id in closely else GLANCE_HOLDER_LIFE_SECONDS)
        for key_id, count in traffic.lookups.items()
    )


def main() -> int:
    """Measure and print. Returns 1 when requests or bytes grow with the swarm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", default="32,128,256,512,1024,2048,4096", help="sizes of the swarm, from 8 to 8192")
    parser.add_argument("--measured", type=int, default=4, help="members of each that are measured, from 1 to 64")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        sizes = [int(text) for text in given.peers.split(",")]
    except ValueError:
        parser.error(f"--peers is {given.peers!r}; expected whole numbers with commas between them")
    if not all(8 <= size <= 8192 for size in sizes):
        parser.error(f"--peers is {given.peers!r}; expected sizes from 8 to 8192")
    if not 1 <= given.measured <= 64:
        parser.error(f"--measured is {given.measured}; expected 1 to 64")
    rows = []
    for size in sizes:
        rows.append(asyncio.run(measure(size, given.measured, given.seed)))
        if not given.json:
            _print(rows[-1], is_first=len(rows) == 1)
    faults = _faults(rows)
    if given.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "faults": faults, "machine": machine()}, indent=2))
    for fault in faults:
        print(f"bench_records: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _faults(rows: list[Row]) -> list[str]:
    first, most = rows[0].requests, max(row.requests for row in rows)
    found = []
    if most > MOST_GROWTH * first:
        found.append(f"from {first:.0f} to {most:.0f} requests a minute; expected at most {MOST_GROWTH - 1:.0%} more")
    small = [row.received_bytes for row in rows if not row.level and row.peers >= 256]
    large = [row.received_bytes for row in rows if row.level]
    if small and large and max(large) > MOST_GROWTH * max(small):
        found.append(
            f"{max(large) / 1e6:.2f} MB a minute in large swarms; expected at most {MOST_GROWTH:g} times the "
            f"{max(small) / 1e6:.2f} of 256 peers"
        )
    return found


def _print(row: Row, *, is_first: bool) -> None:
    if is_first:
        print("  peers level | requests/min look-ups | MB/min got   sent | first look  seen | seen after turn of s")
    print(
        f"{row.peers:7} {row.level:5} | {row.requests:12.0f} {row.lookups:8.0f} | "
        f"{row.received_bytes / 1e6:10.3f} {row.sent_bytes / 1e6:6.3f} | {row.first_look:10.0f} {row.seen_first:5} | "
        f"{row.seen:10} {row.turn_seconds:9.0f}  ({row.real_seconds:.0f} s; {row.record_bytes} bytes a record)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
