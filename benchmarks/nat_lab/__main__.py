"""What works behind which home router: real peers in network namespaces whose routers translate addresses.

    sudo python -m benchmarks.nat_lab [--nats cone,cone] [--seeds 4] [--transport both] [--minutes 1.5] [--json]
    sudo python -m benchmarks.nat_lab --paths ...     (without DHT and training; then 512 KiB from each home to each)

Public seeds, and one home per kind of router: `public` (none), `cone` (one public port for all remotes) and `symmetric`
(another port for each remote); `NAT-alone` joins with `--no-relay`. Each home runs `peer join` on a tiny model. The
table says for each home whether members could dial it, and in how many committed rounds its work was. For each pair it
says how they talked in the end: direct, punched (a hole in both routers), relayed, or not at all. See
docs/volunteer/home-network.md. Needs root, `ip`, `nft`, and nf_tables' masquerade in the kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from averaging.rounds.round_facts import Fact, RoundCommitted
from benchmarks.machine import machine
from benchmarks.nat_lab.spaces import NATS, NatLab, what_is_missing
from dht.identity.keys import Identity
from peer.events.event_log import from_json
from peer.events.path_events import ReachabilityFound, RelayChanged
from peer.events.peer_events import Event, MemberChanged
from peer.owner.new_run import create_run

RUN = """
seed = 1
[model]
num_layers = 1
d_model = 64
num_heads = 2
context = 32
[data]
source = "text:"
[training]
batch_size = 1
[averaging]
sync_every = 1000
num_fragments = 2
[network]
announce_seconds = 2.0
"""
PORT = 4001
START_SECONDS = 60.0
"""For all seeds to listen: several processes start at once."""
LOOK_SECONDS = 0.5
PATHS_PATIENCE_SECONDS = 120.0
"""Beyond their time, for light members to push to each other; a push that fails takes 20 s."""
END_SECONDS = 40.0
"""For all to leave: each waits for its last round, and for members that are gone already."""


@dataclass
class Member:
    """One process of the lab.

    Attributes:
        kind: seed, or the router before it.
        uses_relays: whether relays may lead to it.
    """

    name: str
    kind: str
    uses_relays: bool
    identity: Identity
    folder: Path
    process: subprocess.Popen[Any] | None = None
    events: list[Event] = field(default_factory=list)
    passed: dict[str, bool] = field(default_factory=dict)

    def read(self) -> list[Event]:
        """Everything it has told so far."""
        lines = (self.folder / "out").read_bytes().splitlines()
        self.events = []
        for line in lines:
            if line.startswith(b'{"passed"'):
                self.passed = json.loads(line)["passed"]
                continue
            with contextlib.suppress(ValueError):
                self.events.append(from_json(line))
        return self.events

    def last(self, kind: type[Fact]) -> Any:
        return next((event.fact for event in reversed(self.events) if isinstance(event.fact, kind)), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nats", default="public,cone,cone,symmetric,cone-alone", help="one home for each")
    parser.add_argument("--seeds", type=int, default=4, help="public seeds, at addresses of their own; 1 to 16")
    parser.add_argument("--transport", choices=("tcp", "quic", "both"), default="both")
    parser.add_argument("--minutes", type=float, default=1.5, help="how long they train")
    parser.add_argument("--paths", action="store_true", help="hosts and path managers only, in light processes")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep what every process said here; a new folder")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    homes = asked.nats.split(",")
    if not 1 <= len(homes) <= 16 or any(home.removesuffix("-alone") not in NATS for home in homes):
        raise SystemExit(f"--nats {asked.nats}: expected 1 to 16 of {', '.join(NATS)}, each with -alone or not")
    if not 1 <= asked.seeds <= 16 or not 0 < asked.minutes <= 60:
        raise SystemExit("expected --seeds from 1 to 16 and --minutes above 0 and up to 60")
    if missing := what_is_missing():
        raise SystemExit(f"nat_lab: {missing}.")
    with contextlib.ExitStack() as stack:
        folder = asked.logs
        if folder is None:
            temporary = tempfile.TemporaryDirectory(prefix="mmnat", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
        folder.mkdir(exist_ok=True)
        members = play(folder, homes, asked.seeds, asked.transport, asked.minutes, asked.paths)
        facts = facts_of(members)
    command = " ".join(["python -m benchmarks.nat_lab", *(sys.argv[1:] if arguments is None else arguments)])
    if asked.json:
        print(json.dumps({"command": command, "machine": machine(), **facts}))
    else:
        print_facts(command, facts)
    return 0


def play(
    folder: Path, homes: Sequence[str], num_seeds: int, transport: str, minutes: float, paths_only: bool
) -> list[Member]:
    """Let them all train for the given time; returns them with everything they told."""
    text = folder / "text.txt"
    text.write_text("".join(f"line {number}: {number * number}\n" for number in range(20_000)))
    (folder / "run.toml").write_text(RUN)
    run = create_run("natlab", folder / "run.toml", folder / "owner")
    seeds = [f"seed{number}" for number in range(num_seeds)]
    names = {f"{home}{number}": home for number, home in enumerate(homes)}
    members = []
    for name in (*seeds, *names):
        kind = names.get(name, "seed")
        place = folder / name
        place.mkdir(mode=0o700)
        (place / "run.record").write_bytes(run.run_record_path.read_bytes())
        identity = Identity.load_or_create(place / "identity.key")
        members.append(Member(name, kind.removesuffix("-alone"), not kind.endswith("-alone"), identity, place))
    with NatLab(seeds, {name: kind.removesuffix("-alone") for name, kind in names.items()}) as lab:  # type: ignore[misc]
        addresses: list[str] = []
        try:
            if paths_only:
                _play_paths(lab, members, run.run_id, transport, 60 * minutes)
                return members
            for member in members[:num_seeds]:
                _start(lab, member, run.run_id, addresses[:1], transport)
                addresses += _addresses(lab, member, transport)[:1]
            _wait_up(members[:num_seeds])
            for member in members[num_seeds:]:
                _start(lab, member, run.run_id, addresses, transport)
            time.sleep(60 * minutes)
        finally:
            _end([member.process for member in members if member.process is not None])
            for member in members:
                member.read()
    return members


def _play_paths(lab: NatLab, members: Sequence[Member], run_id: str, transport: str, seconds: float) -> None:
    homes = [member.identity.peer_id for member in members if member.kind != "seed"]
    seeds = [_addresses(lab, member, transport)[0] for member in members if member.kind == "seed"]
    for member in members:
        me = member.identity.peer_id
        told = {
            "key": str(member.folder / "identity.key"),
            "run_id": run_id,
            "listen": _listen("0.0.0.0", transport),
            "is_seed": member.kind == "seed",
            "uses_relays": member.uses_relays,
            "seconds": seconds,
            "seeds": [] if member.kind == "seed" else seeds,
            "homes": [] if member.kind == "seed" else [home for home in homes if home != me],
            "members": [
                {
                    "peer_id": other.identity.peer_id,
                    "role": "seed" if other.kind == "seed" else "trainer",
                    "reachable": other.kind in ("seed", "public"),
                }
                for other in members
                if other is not member
            ],
        }
        with (member.folder / "out").open("ab") as out, (member.folder / "err").open("ab") as err:
            command = [sys.executable, "-m", "benchmarks.nat_lab.member", json.dumps(told)]
            member.process = lab.run(member.name, command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
    for member in members:
        assert member.process is not None
        member.process.wait(seconds + PATHS_PATIENCE_SECONDS)


def _end(processes: Sequence[subprocess.Popen[Any]]) -> None:
    """Let them say goodbye. A peer that takes too long is killed, and its children with its namespace."""
    for process in processes:
        process.terminate()
    end = time.monotonic() + END_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(lab: NatLab, member: Member, run_id: str, peers: Sequence[str], transport: str) -> None:
    command = "seed" if member.kind == "seed" else "join"
    given = [sys.executable, "-m", "peer", command, "--run-id", run_id, "--data-dir", str(member.folder), "--json"]
    for address in _listen("0.0.0.0", transport):
        given += ["--listen", address]
    for address in peers:
        given += ["--peers", address]
    if command == "join":
        given += ["--device", "cpu", "--threads", "1", "--data", f"text:{member.folder.parent / 'text.txt'}"]
    if not member.uses_relays:
        given += ["--no-relay"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(member.folder.parent)}
    with (member.folder / "out").open("ab") as out, (member.folder / "err").open("ab") as err:
        member.process = lab.run(member.name, given, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=environment)


def _listen(ip: str, transport: str) -> list[str]:
    kinds = {"tcp": [f"/ip4/{ip}/tcp/{PORT}"], "quic": [f"/ip4/{ip}/udp/{PORT}/quic-v1"]}
    return kinds["quic"] + kinds["tcp"] if transport == "both" else kinds[transport]


def _addresses(lab: NatLab, member: Member, transport: str) -> list[str]:
    ip = lab.places[member.name].public_ip
    return [f"{address}/p2p/{member.identity.peer_id}" for address in _listen(ip, transport)]


def _wait_up(seeds: Sequence[Member]) -> None:
    end = time.monotonic() + START_SECONDS
    for seed in seeds:
        while "Listening on" not in (seed.folder / "err").read_text(errors="replace"):
            if time.monotonic() > end:
                said = (seed.folder / "err").read_text(errors="replace")[-300:]
                raise SystemExit(f"nat_lab: {seed.name} did not come up within {START_SECONDS:.0f} s: {said}")
            time.sleep(LOOK_SECONDS)


def facts_of(members: Sequence[Member]) -> dict[str, Any]:
    """What the members told, as plain values."""
    homes = [member for member in members if member.kind != "seed"]
    names = {member.identity.peer_id: member.name for member in members}
    rounds: dict[tuple[int, int], Counter[str]] = {}
    for member in members:
        for event in member.events:
            if isinstance(event.fact, RoundCommitted) and len(event.fact.contributors) > 1:
                rounds[event.fact.fragment, event.fact.version] = Counter(
                    names.get(one, "?") for one in event.fact.contributors
                )
    contributed = sum(rounds.values(), Counter[str]())
    return {
        "relays": Counter(
            relay.own_relay if (relay := member.last(RelayChanged)) else "not tried"
            for member in members
            if member.kind == "seed"
        ),
        "rounds": len(rounds),
        "homes": [_home_facts(home, contributed, names) for home in homes],
        "pairs": [
            {
                "of": one.name,
                "with": other.name,
                "path": _path(one, other),
                "passed": one.passed.get(other.identity.peer_id),
                "passed_back": other.passed.get(one.identity.peer_id),
            }
            for one, other in itertools.combinations(homes, 2)
        ],
    }


def _home_facts(home: Member, contributed: Counter[str], names: dict[Any, str]) -> dict[str, Any]:
    found, relay = home.last(ReachabilityFound), home.last(RelayChanged)
    return {
        "name": home.name,
        "dialable": None if found is None else found.reachable,
        "relays": [] if relay is None else [names.get(one, "?") for one in relay.relays],
        "rounds": contributed[home.name],
    }


def _path(one: Member, other: Member) -> str:
    """The last word of either side."""
    told = [
        (event.at, event.fact.path)
        for member, remote in ((one, other), (other, one))
        for event in member.events
        if isinstance(event.fact, MemberChanged) and event.fact.path and event.fact.remote == remote.identity.peer_id
    ]
    return max(told)[1] if told else "none"


def print_facts(command: str, facts: dict[str, Any]) -> None:
    """The two tables, as they stand in docs/volunteer/home-network.md."""
    print(f"{command}\n{machine()}\n")
    print("relays of the seeds: " + ", ".join(f"{count} {kind}" for kind, count in facts["relays"].items()))
    print(f"rounds of at least two: {facts['rounds']}\n")
    print("| home | can be dialled | relays that lead to it | rounds with its work |\n|---|---|---|---|")
    for home in facts["homes"]:
        dialable = {True: "yes", False: "no", None: "not asked"}[home["dialable"]]
        print(f"| {home['name']} | {dialable} | {', '.join(home['relays']) or '-'} | {home['rounds']} |")
    print("\n| pair | path | 512 KiB pass, and back |\n|---|---|---|")
    words = {True: "yes", False: "no", None: "-"}
    for pair in facts["pairs"]:
        passed = f"{words[pair['passed']]}, {words[pair['passed_back']]}"
        print(f"| {pair['of']}, {pair['with']} | {pair['path']} | {passed} |")


if __name__ == "__main__":
    sys.exit(main())
