"""Whether upload and download limits are kept: real hosts and daemons, one sender, one receiver.

    python -m benchmarks.bench_limits [--mbit 20] [--direction upload|download] [--seconds 10] [--json]
    python -m benchmarks.bench_limits --lab NETLAB.py        (root; counts the bytes on the line, all headers included)

A frame like a shard of a round (540 kB) follows the other for that time. The first second is not counted. With --lab
the two hosts live in network namespaces joined by lines of 200 Mbit/s and 30 ms, whose emulator counts every byte.
Without it they talk over loopback and only the bytes of the frames are known. NETLAB.py: see
`benchmarks/lines/home_lines.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.lines.home_lines import home_lines
from benchmarks.machine import machine
from dht.ground.host import Stream
from dht.identity.keys import Identity
from dht.p2pd.host import P2pdHost
from dht.streams.upload_and_download_limits import RateLimits

PROTOCOL = "/murmuration/bench/limits/1"
FRAME_BYTES = 540_000
WARM_UP_SECONDS = 1.0
OPEN_SECONDS = 20.0
LINE_MBIT, RTT_MS = 200, 30


async def _send(ip: str, limits: RateLimits, to: str) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-limits-") as folder:
        identity = Identity.load_or_create(Path(folder) / "identity.key")
        async with P2pdHost(identity, [f"/ip4/{ip}/tcp/0"], limits=limits) as host:
            remote = await host.connect(to, OPEN_SECONDS)
            stream = await host.open_stream(remote, PROTOCOL, OPEN_SECONDS)
            frame = bytes(FRAME_BYTES)
            while True:
                await stream.send(frame)


async def _receive(ip: str, limits: RateLimits) -> None:
    arrived = asyncio.Queue[int]()

    async def serve(stream: Stream) -> None:
        while True:
            arrived.put_nowait(len(await stream.receive(FRAME_BYTES)))

    with tempfile.TemporaryDirectory(prefix="bench-limits-") as folder:
        identity = Identity.load_or_create(Path(folder) / "identity.key")
        async with P2pdHost(identity, [f"/ip4/{ip}/tcp/0"], limits=limits) as host:
            host.handle(PROTOCOL, serve)
            print(host.addresses()[0], flush=True)
            total = 0
            while True:
                total += await arrived.get()
                print(json.dumps({"at": time.monotonic(), "bytes": total}), flush=True)


def _measure(options: argparse.Namespace, lab: Any) -> dict[str, float]:
    limit, none = ["--mbit", str(options.mbit)], ["--mbit", "0"]
    is_upload = options.direction == "upload"

    def start(index: int, *words: str) -> subprocess.Popen[str]:
        ip = lab.ip(index) if lab else "127.0.0.1"
        command = [sys.executable, "-m", "benchmarks.bench_limits", "--ip", ip, *words]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
        process = lab.run(index, command, **pipes) if lab else subprocess.Popen(command, **pipes)
        assert isinstance(process, subprocess.Popen)
        return process

    receiver = start(0, "--role", "receive", *(none if is_upload else limit))
    assert receiver.stdout is not None
    address = receiver.stdout.readline().strip()
    to = ["--to", address, "--direction", options.direction]
    sender = start(1, "--role", "send", *to, *(limit if is_upload else none))
    samples: list[tuple[float, int, int]] = []
    try:
        while not samples or samples[-1][0] < samples[0][0] + WARM_UP_SECONDS + options.seconds:
            line = receiver.stdout.readline()
            if not line:
                raise SystemExit("the receiver ended early; its words are above")
            found = json.loads(line)
            on_line = lab.stats()[1]["tx"] if lab else 0
            samples.append((found["at"], found["bytes"], on_line))
    finally:
        for process in (sender, receiver):
            process.terminate()
            process.wait()
    counted = [sample for sample in samples if sample[0] >= samples[0][0] + WARM_UP_SECONDS]
    seconds = counted[-1][0] - counted[0][0]
    result = {"seconds": seconds, "frames_mbit": 8e-6 * (counted[-1][1] - counted[0][1]) / seconds}
    if lab:
        result["line_mbit"] = 8e-6 * (counted[-1][2] - counted[0][2]) / seconds
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=20.0)
    parser.add_argument("--direction", choices=("upload", "download"), default="upload")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--lab", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", choices=("send", "receive"), help=argparse.SUPPRESS)
    parser.add_argument("--ip", help=argparse.SUPPRESS)
    parser.add_argument("--to", help=argparse.SUPPRESS)
    options = parser.parse_args()
    bits = 1e6 * options.mbit or None
    if options.role == "send":
        asyncio.run(_send(options.ip, RateLimits(upload_bits_per_second=bits), options.to))
        return
    if options.role == "receive":
        asyncio.run(_receive(options.ip, RateLimits(download_bits_per_second=bits)))
        return
    if not (options.mbit > 0 and options.seconds > 0):
        parser.error(f"--mbit {options.mbit:g} --seconds {options.seconds:g}: expected both above 0")
    with home_lines(options.lab, [LINE_MBIT] * 2, [LINE_MBIT] * 2, RTT_MS) as lab:
        result = _measure(options, lab)
    command = "python -m benchmarks.bench_limits " + " ".join(sys.argv[1:])
    if options.json:
        print(json.dumps({"command": command, "machine": machine(), "limit_mbit": options.mbit, **result}))
        return
    print(command)
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    print(f"limit on the {options.direction}   {options.mbit:g} Mbit/s, over {result['seconds']:.1f} s")
    print(f"frames             {result['frames_mbit']:.2f} Mbit/s, {result['frames_mbit'] / options.mbit:.1%} of it")
    if "line_mbit" in result:
        print(f"on the line        {result['line_mbit']:.2f} Mbit/s, {result['line_mbit'] / options.mbit:.1%} of it")


if __name__ == "__main__":
    main()
