"""What a dashboard costs: viewers on one core, answers over a long history, and how the database grows.

    python -m benchmarks.bench_dashboard viewers [--viewers 1000] [--seconds 30] [--peers 200]
    python -m benchmarks.bench_dashboard history [--peers 2000] [--rounds 100000] [--requests 100]
    python -m benchmarks.bench_dashboard bytes [--peers 300] [--looks 150]

`viewers`: this process serves, pinned to one core, and publishes a changed run every second. A second process, on the
other cores, holds that many event streams open and reads them. Reported are the server's CPU time per second and how
long after publishing the last byte of an update had been read.

`history`: a made-up history is written into a real file by the same code that follows a real run, and then asked over
HTTP. Every request comes after a publication, so nothing is answered from what was made for an earlier one.

`bytes`: what a visitor's line carries, compressed as browsers ask for it. That is the first view of each tab with
scripts, style and the points of the curves, and an hour of an open tab. The hour follows from some minutes of looks two
seconds apart. In these every peer writes a record every ten seconds, and a round of eight closes every six.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from benchmarks.machine import machine
from benchmarks.scenes.dashboard_history import MEMBERS, fill, full_state, growth
from benchmarks.scenes.page_bytes import measure_bytes
from dashboard.app import bound_port, start_site
from dashboard.history.history import open_history
from dashboard.observe.dashboard_state import DashboardState, fold
from dashboard.observe.listed_peers import Look
from dashboard.server.handler_context import Site
from dashboard.server.live_updates import Live
from dashboard.server.routes import make_app
from tests.kit.dashboard.records import RUN_ID

LATENCY_VIEWERS = 50
"""Viewers whose updates are timed, evenly among the others, which are only read."""
START_SECONDS = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    viewers = commands.add_parser("viewers")
    viewers.add_argument("--viewers", type=int, default=1000)
    viewers.add_argument("--seconds", type=int, default=30)
    viewers.add_argument("--peers", type=int, default=200)
    history = commands.add_parser("history")
    history.add_argument("--peers", type=int, default=2000)
    history.add_argument("--rounds", type=int, default=100_000)
    history.add_argument("--requests", type=int, default=100)
    bytes_sent = commands.add_parser("bytes")
    bytes_sent.add_argument("--peers", type=int, default=300)
    bytes_sent.add_argument("--looks", type=int, default=150)
    reading = commands.add_parser("read")
    reading.add_argument("port", type=int)
    reading.add_argument("viewers", type=int)
    chosen = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65_536, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    if chosen.command == "read":
        asyncio.run(read_streams(chosen.port, chosen.viewers))
        return
    if chosen.command == "bytes":
        measure = measure_bytes(chosen.peers, chosen.looks)
    elif chosen.command == "viewers":
        measure = measure_viewers(chosen.viewers, chosen.seconds, chosen.peers)
    else:
        measure = measure_history(chosen.peers, chosen.rounds, chosen.requests)
    facts = {"command": " ".join(sys.argv[1:]), "machine": machine(), **asyncio.run(measure)}
    print(json.dumps(facts, indent=1))


async def measure_viewers(num_viewers: int, num_seconds: int, num_peers: int) -> dict[str, Any]:
    """CPU time of the server and delivery times with `num_viewers` open streams."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    state = full_state(num_peers, time.time())
    stack = contextlib.AsyncExitStack()
    kept = open_history(None, RUN_ID, clock=time.time, warn=print)
    history = await stack.enter_async_context(kept)
    history.look(state)
    live = Live(state, "boot", history.view)
    runner = await start_site(make_app(Site(live, history)), "127.0.0.1", 0)
    command = [sys.executable, "-m", "benchmarks.bench_dashboard", "read", str(bound_port(runner)), str(num_viewers)]
    reader = _reader(command, set(cores[1:] or cores))
    assert reader.stdout is not None
    assert await asyncio.to_thread(reader.stdout.readline) == "ready\n"
    used = []
    sizes = []
    for step in range(num_seconds):
        began, cpu = time.monotonic(), time.process_time()
        state = _changed(state, step)
        version = live.version
        history.look(state)
        live.publish(state, history.view)
        sizes.append(len(live.since(version)))
        await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
        used.append(time.process_time() - cpu)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    live.close()
    output = await asyncio.to_thread(lambda: reader.communicate(timeout=START_SECONDS)[0])
    await runner.cleanup()
    await stack.aclose()
    return {
        "viewers": num_viewers,
        "bytes_per_update": round(statistics.fmean(sizes)),
        "server_cpu_per_second": {"mean": round(statistics.fmean(used), 3), "p95": _p95(used)},
        "server_resident_mb": round(rss),
        "delivery": json.loads(output.splitlines()[-1]),
    }


def _reader(command: Sequence[str], cores: set[int]) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(process.pid, cores)
    return process


def _changed(state: DashboardState, step: int) -> DashboardState:
    """A second later: a tenth of the peers have a new record."""
    now = time.time()
    rows = state.peers[step % 10 :: 10]
    records = [
        replace(
            row.record,
            sequence=row.record.sequence + 1,
            expires_at=now + 100,
            tokens=row.record.tokens + 4096,
            tokens_per_second=1000.0 + step,
            train_loss=3.0 - 0.01 * step,
        )
        for row in rows
    ]
    return fold(state, Look(now=now, num_members=3, records=records))


async def read_streams(port: int, num_viewers: int) -> None:
    """Hold the streams open until the server ends them; prints ``ready``, then when updates were read."""
    late: list[float] = []
    num_bytes = 0
    open_streams = asyncio.Semaphore(100)

    async def view(index: int, is_open: asyncio.Event) -> None:
        nonlocal num_bytes
        async with open_streams:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            writer.write(b"GET /events/stream?after=boot-1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await reader.readuntil(b"event: tick")
            is_open.set()
        rest = b""
        while chunk := await reader.read(1 << 18):
            num_bytes += len(chunk)
            if index % max(1, num_viewers // LATENCY_VIEWERS):
                continue
            rest = (rest + chunk)[-4096:]
            curves, _, after = rest.partition(b'"columns":')[2].partition(b"}\n")
            if b"event: tick" in after:
                columns = json.loads(curves)
                late.append(time.time() - columns[0][-1])
                rest = b""
        writer.close()

    events = [asyncio.Event() for _ in range(num_viewers)]
    viewing = [asyncio.create_task(view(index, event)) for index, event in enumerate(events)]
    await asyncio.gather(*(event.wait() for event in events))
    print("ready", flush=True)
    await asyncio.gather(*viewing)
    facts = {"updates_timed": len(late), "mb_read": round(num_bytes / 1e6, 1)}
    if late:
        facts |= {"p50_ms": round(1000 * statistics.median(late)), "p95_ms": round(1000 * _p95(late))}
    print(json.dumps(facts), flush=True)


async def measure_history(num_peers: int, num_rounds: int, num_requests: int) -> dict[str, Any]:
    """Time of answers over a long history, in milliseconds, and sizes of the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        facts: dict[str, Any] = {"peers": num_peers, "rounds": num_rounds, "members_per_round": MEMBERS}
        began = time.monotonic()
        facts |= await fill(path, num_peers, num_rounds)
        facts["fill_seconds"] = round(time.monotonic() - began, 1)
        began = time.monotonic()
        async with open_history(path, RUN_ID, clock=time.time, warn=print) as history:
            facts["start_seconds"] = round(time.monotonic() - began, 2)
            state = full_state(num_peers, time.time())
            looks = []
            for step in range(10):
                began = time.monotonic()
                state = _changed(state, step)
                history.look(state)
                live_view = history.view
                looks.append(time.monotonic() - began)
            live = Live(state, "boot", live_view)
            began = time.monotonic()
            live.publish(_changed(state, 3), live_view)
            facts["look_ms"] = {"fold_and_view": _ms(looks), "render": round(1000 * (time.monotonic() - began))}
            app = make_app(Site(live, history))
            runner = await start_site(app, "127.0.0.1", 0)
            facts["p95_ms"] = await _ask(live, runner_port=bound_port(runner), num_requests=num_requests)
            await runner.cleanup()
    facts["growth"] = await growth()
    return facts


async def _ask(live: Live, *, runner_port: int, num_requests: int) -> dict[str, float]:
    chance = random.Random(1)
    ids = [row.contributor_id for row in live.history.contributors]
    newest = live.history.num_rounds

    def paths() -> dict[str, str]:
        who = chance.choice(ids)
        return {
            "/": "/",
            "/c/{id}": f"/c/{who}",
            "run": "/api/v1/run",
            "peers": "/api/v1/peers",
            "rounds": f"/api/v1/rounds?limit=50&before={chance.randrange(100, newest)}",
            "contributors": f"/api/v1/contributors?limit=50&offset={chance.randrange(len(ids))}",
            "contributors?search": f"/api/v1/contributors?search={who[-6:]}",
            "contributors/{id}": f"/api/v1/contributors/{who}",
            "points": "/api/v1/points?x=tokens&max=1000",
            "metrics": "/metrics",
        }

    times: dict[str, list[float]] = {}
    async with ClientSession(f"http://127.0.0.1:{runner_port}") as session:
        for _ in range(num_requests):
            live.num_published += 1  # as after a look: nothing that was made before is used
            for name, path in paths().items():
                began = time.monotonic()
                async with session.get(path) as response:
                    await response.read()
                    assert response.status == 200, path
                times.setdefault(name, []).append(time.monotonic() - began)
    return {name: round(1000 * _p95(values), 1) for name, values in times.items()}


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def _ms(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(1000 * statistics.median(values), 1), "p95": round(1000 * _p95(values), 1)}


if __name__ == "__main__":
    main()
