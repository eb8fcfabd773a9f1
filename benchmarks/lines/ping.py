"""What a household feels while its line is full: echo requests from one host to another, 20 a second.

Started by `bench_round --ping`, with an address; needs Linux and `net.ipv4.ping_group_range`.

Prints a line of JSON for each answer: `at`, when it was sent by the system-wide monotonic clock, and `ms`, how long it
took. The kernel answers, and stamps what comes back, so that a busy processor is not taken for a full line.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence

EVERY_SECONDS = 0.05
ECHO_REQUEST = 8
SO_TIMESTAMPNS = 35
"""Not in Python's `socket`; the same on all of Linux but a few old processors."""
STAMP = struct.Struct("ll")


def ping(address: str) -> None:
    """Ask `address` until the process is ended."""
    asked: dict[int, tuple[float, float]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as echo:
        echo.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        number = 0
        while True:
            number = (number + 1) % 2**16
            request = struct.pack(">BBHHH", ECHO_REQUEST, 0, 0, 0, number)
            asked[number] = (time.monotonic(), time.time())
            echo.sendto(request, (address, 0))
            next_at = asked[number][0] + EVERY_SECONDS
            while (left := next_at - time.monotonic()) > 0:
                echo.settimeout(left)
                try:
                    answer, notes, _, _ = echo.recvmsg(64, socket.CMSG_SPACE(STAMP.size))
                except TimeoutError:
                    break
                sent = asked.pop(int.from_bytes(answer[6:8], "big"), None)
                if sent is not None and notes:
                    seconds, nanoseconds = STAMP.unpack(notes[0][2][: STAMP.size])
                    ms = 1e3 * (seconds + nanoseconds * 1e-9 - sent[1])
                    print(json.dumps({"at": sent[0], "ms": round(ms, 2)}), flush=True)


def stop(process: subprocess.Popen[str], spans: Sequence[tuple[float, float]]) -> list[float]:
    """End a pinging process: milliseconds of the pings that were sent in one of `spans`, sorted."""
    process.terminate()
    out, _ = process.communicate()
    found = [json.loads(line) for line in out.splitlines()]
    return sorted(one["ms"] for one in found if any(begin <= one["at"] <= end for begin, end in spans))


if __name__ == "__main__":
    ping(sys.argv[1])
