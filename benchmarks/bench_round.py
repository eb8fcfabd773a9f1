"""How long a whole averaging round takes: real processes, real daemons, the real exchange, made-up work.

    python -m benchmarks.bench_round [--peers 4] [--values 25000000] [--fragments 1] [--rounds 7] [--json]
    python -m benchmarks.bench_round --lab NETLAB.py --up 100 --rtt 30      (root; home lines in network namespaces)
    python -m benchmarks.bench_round --lab NETLAB.py --up 20/50/100/100     (one line each)
    python -m benchmarks.bench_round --lab NETLAB.py --up 20 --down 100 --queue 500 --ping --busy 2 --no-pace

A round's time is from the first member's offer (the work lies ready, nothing is encoded yet) until the last member has
applied the commit. Then its anchor has moved and the change lies ready for its trainer. The digest that the next round
of the fragment begins with can be known a little later, which is said beside it. The first round is told apart: streams
are opened and no deadline is learned yet. Without --lab the members talk over loopback at whatever speed it has.
NETLAB.py: see `benchmarks/lines/home_lines.py`.

With --ping the first member's home pings a server while rounds after the first run, which is what others on its line
feel. The flag --busy adds processes that do nothing but count. With --no-pace uploads do not pace themselves.

The limit beside it is what the bytes alone need. Every member sends its contribution to the other reducers and its
reduced shard to the other members. That is 2 (M-1)/M of the encoded size, at its upload rate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from statistics import mean, median
from typing import Any

from averaging.codec.blocks import CODE_BITS
from averaging.codec.codec import make_codec
from benchmarks.lines import ping
from benchmarks.lines.home_lines import MAX_HOSTS, home_lines, numbers
from benchmarks.machine import machine
from benchmarks.members.member_process import MemberProcess
from peer.network.process.child_start import CHILD_ENVIRONMENT


def start_members(options: argparse.Namespace, lab: Any) -> list[MemberProcess]:
    """All member processes, met with each other."""
    members = []
    for index in range(options.peers):
        ip = "127.0.0.1" if lab is None else lab.ip(index)
        command = [sys.executable, "-m", "benchmarks.members.round_member", "--ip", ip, "--values", str(options.values)]
        command += ["--fragments", str(options.fragments), "--codec", options.codec]
        command += ["--no-pace"] * options.no_pace
        # As a peer's network process has it, which this stands for.
        arguments: dict[str, Any] = {"env": {**os.environ, **CHILD_ENVIRONMENT}}
        arguments |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, **arguments) if lab is None else lab.run(index, command, **arguments)
        members.append(MemberProcess(index, process))
    known = {member.hello["peer_id"]: member.hello["address"] for member in members}
    for member in members:
        member.ask(do="meet", members=known)
    return members


SERVER_MBIT = 1000.0
"""The line of the host that is pinged."""
MOST_ROUNDS_PER_TIMED = 3
"""Where work misses most rounds, hardly any begins with nothing left over."""


def run_rounds(options: argparse.Namespace, members: list[MemberProcess]) -> list[dict[str, Any]]:
    """Each round's time, bytes and whether every member was in it with the same outcome.

    Work that missed a round is offered again at once, before the others are told to begin. The round after such a one
    is counted and checked, but its time says nothing, and one more is run in its place.
    """
    rounds: list[dict[str, Any]] = []
    digests: dict[tuple[int, int], set[str]] = {}
    sent_before, received_before = [0] * len(members), [0] * len(members)
    is_clean, num_timed = True, 0
    while num_timed <= options.rounds and len(rounds) < MOST_ROUNDS_PER_TIMED * (options.rounds + 1):
        for index, member in enumerate(members):
            member.tell(do="prepare", seed=index)
        for member in members:
            member.read()
        for member in members:
            member.tell(do="round")
        answers = [member.read() for member in members]
        for answer in answers:
            for fragment, version, digest in answer["digests"]:
                digests.setdefault((fragment, version), set()).add(digest)
        sent = [answer["sent_bytes"] for answer in answers]
        received = [answer["received_bytes"] for answer in answers]
        first = min(answer["offered_at"] for answer in answers)
        rounds.append(
            {
                "is_timed": is_clean and num_timed > 0,
                "span": (first, max(answer["applied_at"] for answer in answers)),
                "seconds": max(answer["applied_at"] for answer in answers) - first,
                "settled_seconds": max(answer["settled_at"] for answer in answers) - first,
                "sent_bytes": [now - before for now, before in zip(sent, sent_before, strict=True)],
                "received_bytes": [now - before for now, before in zip(received, received_before, strict=True)],
                "cpu_seconds": mean(answer["cpu_seconds"] for answer in answers),
                "daemon_cpu_seconds": mean(answer["daemon_cpu_seconds"] for answer in answers),
                "members": min(answer["members"] for answer in answers),
                "in_all": all(answer["in_all"] for answer in answers),
                "void_shards": max(answer["void_shards"] for answer in answers),
                "paces_mbit": [round(answer["pace_mbit"], 1) for answer in answers],
                "late": [index for index, answer in enumerate(answers) if answer["has_returned"]],
                "equal": all(len(found) == 1 for found in digests.values()),
            }
        )
        sent_before, received_before = sent, received
        print(_brief(len(rounds) - 1, rounds[-1]), file=sys.stderr, flush=True)
        num_timed += is_clean
        is_clean = not rounds[-1]["late"]
    return rounds


def _brief(number: int, one: dict[str, Any]) -> str:
    late = f", late: member {' and '.join(map(str, one['late']))}" if one["late"] else ""
    paces = "/".join(f"{pace:.0f}" if pace else "-" for pace in one["paces_mbit"])
    equal = "" if one["equal"] else ", DIFFERENT DIGESTS"
    counts = "" if one["is_timed"] else " (not timed)"
    return f"round {number}: {one['seconds']:.3f} s{counts}, {one['members']} members{late}, paces {paces}{equal}"


def limit_seconds(options: argparse.Namespace) -> float | None:
    """What the bytes alone need on the lines; None over loopback.

    With unequal lines: the best that any assignment of reducers can do. Member i sends at least its contribution minus
    its own shard, and share s_i of the result to M - 1 others. Shares sum to 1.
    """
    if options.lab is None:
        return None
    total = 8 * make_codec(options.codec, 128).encoded_num_bytes(options.values)
    up = [rate * 1e6 for rate in numbers(options.up, options.peers, "--up")]
    down = [rate * 1e6 for rate in numbers(options.down or options.up, options.peers, "--down")]
    others = options.peers - 1
    low, high = 0.0, 1e6
    for _ in range(100):
        seconds = (low + high) / 2
        # Sent: (1 - s) + s * others; received: (1 - s) for results, s * others for contributions; both total bits.
        slope = max(others - 1, 1e-9)
        shares = [min((seconds * rate / total - 1) / slope, 1.0) for rate in (*map(min, up, down),)]
        if min(shares) >= 0 and sum(shares) >= 1:
            high = seconds
        else:
            low = seconds
    return high


def main() -> int:
    parser = argparse.ArgumentParser(description="Wall time of whole averaging rounds.")
    parser.add_argument("--peers", type=int, default=4, help="members (default 4)")
    parser.add_argument("--values", type=int, default=25_000_000, help="parameters (default 25 M)")
    parser.add_argument("--fragments", type=int, default=1, help="fragments, all in flight at once (default 1)")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds after the first (default 7)")
    parser.add_argument("--codec", default="int4", help="codec (default int4)")
    parser.add_argument("--lab", help="Python file with a class Lab; needs root")
    parser.add_argument("--up", default="100", help="with --lab: upload in Mbit/s, one number or one per member")
    parser.add_argument("--down", help="with --lab: download in Mbit/s (default: as --up)")
    parser.add_argument("--rtt", type=float, default=30.0, help="with --lab: round trip in ms (default 30)")
    parser.add_argument("--loss", type=float, default=0.0, help="with --lab: share of packets lost (default 0)")
    parser.add_argument("--congestion", default="cubic", help="with --lab: TCP congestion control (default cubic)")
    parser.add_argument("--queue", type=float, help="with --lab: queue of each router in ms (default: the emulator's)")
    parser.add_argument("--ping", action="store_true", help="with --lab: ping a server from the first member's home")
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside the members (default 0)")
    parser.add_argument("--no-pace", action="store_true", help="uploads do not pace themselves")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    if options.peers < 2 or options.values < 1 or options.rounds < 1 or not 1 <= options.fragments <= options.values:
        parser.error("expected at least 2 peers, 1 value, 1 round, and from 1 fragment to one per value")
    if options.peers > MAX_HOSTS or options.codec not in CODE_BITS:
        parser.error(f"expected at most {MAX_HOSTS} peers and a codec of {', '.join(CODE_BITS)}")
    up = numbers(options.up, options.peers, "--up")
    down = numbers(options.down or options.up, options.peers, "--down")
    servers = [SERVER_MBIT] * (options.ping and options.lab is not None)
    line = options.rtt, options.loss, options.congestion, options.queue
    with home_lines(options.lab, up + servers, down + servers, *line) as lab, busy_loops(options.busy):
        members = start_members(options, lab)
        pinging = None
        try:
            if servers:
                command = [sys.executable, "-m", "benchmarks.lines.ping", lab.ip(options.peers)]
                pinging = lab.run(0, command, stdout=subprocess.PIPE, text=True)
            rounds = run_rounds(options, members)
            usage = [member.ask(do="usage") for member in members]
        finally:
            for member in members:
                member.stop()
            pings = [] if pinging is None else ping.stop(pinging, [one["span"] for one in rounds[1:]])
    result = summary(options, rounds, usage, pings)
    if options.json:
        print(json.dumps(result))
    else:
        print_summary(result)
    return 0 if result["all_equal"] and result["all_members_in_all_rounds"] else 1


@contextlib.contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """So many processes that only count, while the block runs."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def summary(
    options: argparse.Namespace,
    rounds: list[dict[str, Any]],
    usage: list[dict[str, float]],
    pings: Sequence[float] = (),
) -> dict[str, Any]:
    """Everything that is printed; `pings` are sorted."""
    kept = [one for one in rounds if one["is_timed"]]
    if not kept:
        raise SystemExit(
            f"each of {len(rounds)} rounds began with work that the one before had missed; expected one that did not; "
            "try faster lines or fewer lost packets"
        )
    timed = [one["seconds"] for one in kept]
    limit = limit_seconds(options)
    lines = f"{options.up} up, {options.down or options.up} down, rtt {options.rtt:g} ms, loss {options.loss:g}, "
    lines += options.congestion
    return {
        "command": " ".join(["python -m benchmarks.bench_round", *sys.argv[1:]]),
        "machine": machine(),
        "peers": options.peers,
        "values": options.values,
        "fragments": options.fragments,
        "codec": options.codec,
        "lines": "loopback" if options.lab is None else lines,
        "first_seconds": rounds[0]["seconds"],
        "seconds": timed,
        "median_seconds": median(timed),
        "median_settled_seconds": median(one["settled_seconds"] for one in kept),
        "limit_seconds": limit,
        "ratio_to_limit": None if limit is None else median(timed) / limit,
        "megabytes_sent_per_peer": median(mean(one["sent_bytes"]) / 1e6 for one in kept),
        "megabytes_received_per_peer": median(mean(one["received_bytes"]) / 1e6 for one in kept),
        "cpu_seconds_per_round_and_peer": median(one["cpu_seconds"] for one in kept),
        "daemon_cpu_seconds_per_round_and_peer": median(one["daemon_cpu_seconds"] for one in kept),
        "peak_mb": max(one["peak_mb"] for one in usage),
        "daemon_peak_mb": max(one.get("daemon_peak_mb", 0.0) for one in usage),
        "rounds_not_timed": len(rounds) - 1 - len(kept),
        "paces_mbit": rounds[-1]["paces_mbit"],
        "ping_ms": {str(share): pings[int(share / 100 * (len(pings) - 1))] for share in (5, 50, 95, 100) if pings},
        "all_equal": all(one["equal"] for one in rounds),
        "all_members_in_all_rounds": all(
            one["in_all"] and one["members"] == options.peers and not one["void_shards"] for one in rounds[1:]
        ),
    }


def print_summary(result: dict[str, Any]) -> None:
    """The same for people."""
    print(result["command"])
    print(", ".join(f"{key} {value}" for key, value in result["machine"].items()))
    print(f"{result['peers']} peers, {result['values']} values, {result['codec']}, lines: {result['lines']}")
    print(f"first round        {result['first_seconds']:.3f} s")
    spread = f"{min(result['seconds']):.3f} to {max(result['seconds']):.3f}"
    print(f"round, median      {result['median_seconds']:.3f} s ({spread})")
    if result["rounds_not_timed"]:
        print(f"not timed          {result['rounds_not_timed']} rounds after one that somebody's work had missed")
    if result["ping_ms"]:
        quickest, usual, late, latest = result["ping_ms"].values()
        print(f"ping               {usual:.0f} ms, 5 to 95 %: {quickest:.0f} to {late:.0f}, slowest {latest:.0f}")
    print(f"digests known      {result['median_settled_seconds']:.3f} s")
    if result["limit_seconds"] is not None:
        print(f"limit of the line  {result['limit_seconds']:.3f} s, ratio {result['ratio_to_limit']:.2f}")
    up, down = result["megabytes_sent_per_peer"], result["megabytes_received_per_peer"]
    print(f"bytes per peer     {up:.2f} MB sent, {down:.2f} MB received a round")
    own, daemon = result["cpu_seconds_per_round_and_peer"], result["daemon_cpu_seconds_per_round_and_peer"]
    print(f"CPU per round      {own:.2f} s in the process of each peer, {daemon:.2f} s in its daemon")
    print(f"peak resident      {result['peak_mb']:.0f} MB process, {result['daemon_peak_mb']:.0f} MB daemon")
    print(f"anchors equal      {'yes' if result['all_equal'] else 'NO'}")
    print(f"everyone in        {'yes' if result['all_members_in_all_rounds'] else 'NO'}")


if __name__ == "__main__":
    sys.exit(main())
