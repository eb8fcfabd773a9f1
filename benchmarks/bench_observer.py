"""What an observer costs with each transport: resident memory and CPU time, the daemon's included.

    python -m benchmarks.bench_observer --members 6 --seconds 60

Real members with their daemons on loopback, which publish their records anew as often as peers do. One observer after
the other looks at them every two seconds, as the dashboard's does. Memory and CPU are read from /proc (Linux).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from dht.identity.keys import Identity, make_run_id
from dht.observer.host_choice import HostBackend
from dht.observer.network import observer_network
from dht.records.peer_record import PeerRecord, encode_peer_record
from dht.records.signed_manifest import encode_run_record, sign_run_record
from tests.kit.records import make_record

LOOK_SECONDS = 2.0
ANNOUNCE_SECONDS = 10.0
OWNER = Identity.from_seed(bytes(32))
RUN_ID = make_run_id("observed", OWNER.public_key)


def main() -> None:
    arguments = read_arguments()
    if arguments.observe:
        asyncio.run(observe(arguments.observe, arguments.addresses))
        return
    facts = {"machine": machine(), "members": arguments.members, "seconds": arguments.seconds, "observers": {}}
    facts["observers"] = asyncio.run(measure(arguments.members, arguments.seconds))
    if arguments.json:
        print(json.dumps(facts))
        return
    print(f"{arguments.members} members, {arguments.seconds:.0f} s each, on {facts['machine']['cpu']}")
    for backend, figures in facts["observers"].items():
        print(
            f"{backend:7} {figures['resident_mb']:6.0f} MB resident, of it {figures['daemon_mb']:.0f} MB daemon;  "
            f"{figures['cpu_percent']:.1f} % of a core;  {figures['looks']} looks, each saw {figures['seen']} records"
        )


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--observe", choices=("libp2p", "p2pd"), help=argparse.SUPPRESS)
    parser.add_argument("--addresses", nargs="*", default=[], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.members < 1 or arguments.seconds <= 0:
        parser.error("expected at least one member and a time above 0")
    return arguments


async def observe(backend: HostBackend, addresses: list[str]) -> None:
    """The observer's process: looks without end, and tells of each look in one line."""
    async with observer_network(backend, addresses) as (_, store):
        while True:
            await store.bootstrap(addresses)
            await store.fetch_run(RUN_ID)
            print(len(await store.fetch_peers(RUN_ID)), flush=True)
            await asyncio.sleep(LOOK_SECONDS)


async def measure(num_members: int, seconds: float) -> dict[str, Any]:
    """Figures of one observer after the other."""
    from dht.kademlia.dht_store import HivemindStore
    from dht.p2pd.host import P2pdHost

    async with contextlib.AsyncExitStack() as stack:
        addresses: list[str] = []
        for _ in range(num_members):
            identity = Identity.generate()
            host = await stack.enter_async_context(P2pdHost(identity, ["/ip4/127.0.0.1/tcp/0"]))
            store = HivemindStore(host)
            await store.start()
            stack.push_async_callback(store.close)
            await store.bootstrap(addresses)
            addresses = addresses or host.addresses()
            announcing = asyncio.ensure_future(announce(store, identity))
            stack.callback(announcing.cancel)
        return {backend: await one_observer(backend, addresses, seconds) for backend in ("p2pd", "libp2p")}


async def announce(store: Any, identity: Identity) -> None:
    run = encode_run_record(sign_run_record(RUN_ID, b'{"revision":1}', OWNER))
    sequence = 0
    while True:
        sequence += 1
        expires_at = time.time() + 3 * ANNOUNCE_SECONDS
        record = encode_peer_record(record_of(identity, sequence, expires_at), identity)
        await store.publish_run(RUN_ID, run, time.time() + 600)
        await store.publish_peer(RUN_ID, identity.peer_id, record, expires_at)
        await asyncio.sleep(ANNOUNCE_SECONDS)


def record_of(identity: Identity, sequence: int, expires_at: float) -> PeerRecord:
    return make_record(
        identity.peer_id,
        run_id=RUN_ID,
        sequence=sequence,
        expires_at=expires_at,
        software="bench",
        inner_steps=sequence,
        tokens=sequence,
        tokens_per_second=1.0,
        started_at=0.0,
    )


async def one_observer(backend: str, addresses: list[str], seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.bench_observer", "--observe", backend, "--addresses", *addresses]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        # Start-up, which is mostly imports, is not counted.
        await process.stdout.readline()
        started_at, cpu_before = time.monotonic(), cpu_seconds(process.pid)
        looks: list[int] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while line := await process.stdout.readline():
                    looks.append(int(line))
        passed = time.monotonic() - started_at
        daemons = children(process.pid)
        return {
            "resident_mb": sum(resident_mb(pid) for pid in (process.pid, *daemons)),
            "daemon_mb": sum(resident_mb(pid) for pid in daemons),
            "cpu_percent": 100 * (cpu_seconds(process.pid) - cpu_before) / passed,
            "looks": len(looks),
            "seen": min(looks, default=0),
        }
    finally:
        process.terminate()
        await process.wait()


def children(pid: int) -> list[int]:
    """Children of all threads of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(pid: int) -> float:
    """Of a process and its children."""
    ticks = 0
    for one in (pid, *children(pid)):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
