"""One member of `bench_round.py`: the real daemon, host, links and exchange of a peer, with made-up work.

It is driven by lines of JSON on standard input and answers with lines of JSON on standard output:

    (start)                                     -> {"peer_id", "address"}
    {"do": "meet", "members": {peer_id: addr}}  -> {"met": n}            dials everybody, sends the view
    {"do": "prepare", "seed": s}                -> {"prepared": true}    work for every fragment, not yet encoded
    {"do": "round"}                             -> {"offered_at", "applied_at", "settled_at", "digests", ...}
    {"do": "usage"}                             -> CPU seconds and peak resident memory of this process and its daemon
    end of input                                -> leaves

Times are of the system-wide monotonic clock, so that those of several members on one machine can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import uvloop

from averaging.arrays import F32
from averaging.exchange.exchange import Exchange
from averaging.exchange.exchange_ports import ExchangePorts
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import ShardStore
from averaging.lanes.links import ROUND_PROTOCOL, LinkPorts, Links
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.rounds.round_facts import AppliedCommit, CommitTaken, Report, RoundCommitted, WorkReturned
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.waits import Waits
from averaging.signing.round_signatures import Notary, Scope
from averaging.trust.claim_guard import Guard, GuardPorts
from averaging.wire.messages import DIGEST_BYTES, Message
from dht.admission.handshake_frames import AccessRule
from dht.ground.host import PeerId
from dht.identity.keys import Identity, verify
from dht.p2pd.host import P2pdHost
from peer.config.averaging_rules import codec_of, limits_of, rule_of
from peer.config.manifest import AveragingSection, RunManifest
from peer.network.membership.run_handshake_policy import RunHandshakePolicy

T = TypeVar("T")

CONNECT_SECONDS = 30.0
ROUND_SECONDS = 300.0
"""A round that takes longer has failed; the manifest's own bound is a minute."""
TOKENS, STEPS = 10_000, 10


async def _compute(work: Callable[[], T], /) -> T:
    return await asyncio.to_thread(work)


class Member:
    """One peer's network side without DHT, trainer and mailbox."""

    def __init__(
        self, identity: Identity, host: P2pdHost, manifest: RunManifest, sizes: list[int], *, paces: bool = True
    ) -> None:
        self.host = host
        self.sizes = sizes
        self.closed: dict[int, RoundCommitted] = {}
        self.taken: dict[int, CommitTaken] = {}
        self.moved: list[AppliedCommit] = []
        self.has_returned = False
        self.received_bytes = 0
        self.work: list[F32] = []
        self.shown_at: dict[int, float] = {}
        self.changed = asyncio.Event()
        rule, codec = rule_of(manifest), codec_of(manifest)
        section = manifest.averaging
        self.notary = Notary(Scope(manifest.name, manifest.hash), identity.sign, verify)
        watch = GuardPorts(time.monotonic, self._on_report, on_exclusion=lambda: self.exchange.exclude())
        self.guard = Guard(host.peer_id, rule.staleness_limit, watch, is_strict=rule.is_strict)
        self.fragments = [self._fragment(index, size, manifest) for index, size in enumerate(sizes)]
        self.changes = [np.zeros(size, np.float32) for size in sizes]
        keeper = RunHandshakePolicy(
            AccessRule(f"{manifest.name}.bench", manifest.hash, "bench", manifest.rules), host.peer_id, "trainer"
        )
        heard = LinkPorts(
            self._take,
            lambda peer_id, reason: self.exchange.peer_lost(peer_id, reason),
            lambda peer_id, what: print(f"refused {peer_id}: {what}", file=sys.stderr),
        )
        line = host.pace_of(ROUND_PROTOCOL) if paces else None
        self.links = Links(host, keeper, limits_of(sizes, codec), heard, time.monotonic, line)
        self.exchange = Exchange(
            *(host.peer_id, rule, self.fragments, self.guard, self.links),
            ExchangePorts(time.monotonic, _compute, self._on_change, self._on_report, self._lend),
            first_sequence=1,
        )
        self.exchange.sending.take_part(True)
        self.deadline_seconds = section.round_deadline_seconds

    def _take(self, sender: PeerId, message: Message, payload: memoryview, frame_bytes: int) -> None:
        self.received_bytes += frame_bytes
        self.exchange.on_message(sender, message, payload, frame_bytes)

    def _lend(self, index: int) -> AbstractContextManager[F32]:
        return nullcontext(self.changes[index])

    def _fragment(self, index: int, size: int, manifest: RunManifest) -> FragmentRuntime:
        codec, section = codec_of(manifest), manifest.averaging
        anchor, momentum, residual = (np.zeros(size, dtype=np.float32) for _ in range(3))
        state = FragmentState(rule_of(manifest), codec, anchor, momentum, residual)
        state.refresh_digest()
        timing = Waits.with_bounds(section.round_deadline_seconds)
        machine = RoundMachine(
            *(self.host.peer_id, manifest.name, index, size, codec.block_size, timing),
            self.notary,
            anchor_digest=state.digest[:DIGEST_BYTES],
            objection=partial(self.guard.claim_objection, timing=timing),
            doubt=partial(self.guard.doubts, timing=timing),
        )
        return FragmentRuntime(index, state, machine, ShardStore(codec, size))

    def _on_change(self, fragment: int, change: F32, version: int) -> None:
        self.shown_at[fragment] = time.monotonic()

    def _on_report(self, report: Report) -> None:
        if isinstance(report, RoundCommitted):
            self.closed[report.fragment] = report
        elif isinstance(report, CommitTaken):
            self.taken[report.commit.fragment] = report
            self.changed.set()
        elif isinstance(report, AppliedCommit):
            self.moved.append(report)
        elif isinstance(report, WorkReturned):
            self.has_returned = True

    async def meet(self, members: dict[PeerId, str]) -> None:
        """Dial everybody; all are trainers."""
        for peer_id, address in sorted(members.items()):
            if peer_id != self.host.peer_id:
                await self.host.connect(address, CONNECT_SECONDS)
        self.exchange.set_view(sorted(members), [])

    def prepare(self, seed: int) -> None:
        """Work for every fragment, as the trainer hands it over. The values are the same each time, because making them
        takes long. A member with work left over would be alone with its next round.
        """
        if not self.work:
            generator = np.random.default_rng(seed)
            self.work = [1e-3 * generator.standard_normal(size, dtype=np.float32) for size in self.sizes]
        for fragment, work in zip(self.fragments, self.work, strict=True):
            fragment.state.receive_work(work, TOKENS, STEPS, max(0, fragment.state.version - 1))

    async def round(self) -> dict[str, Any]:
        """Offer all fragments at once and wait until every one of them was applied."""
        self.closed.clear()
        self.taken.clear()
        self.has_returned = False
        before = self.usage()
        offered_at = time.monotonic()
        for fragment in self.fragments:
            fragment.machine.timing.own_pace.observe(offered_at)
        await asyncio.gather(*(self.exchange.sending.offer(fragment) for fragment in self.fragments))
        async with asyncio.timeout(ROUND_SECONDS):
            while len(self.taken) < len(self.fragments):
                self.changed.clear()
                await self.changed.wait()
        settled_at = time.monotonic()
        after = self.usage()
        closed, taken = list(self.closed.values()), list(self.taken.values())
        return {
            "offered_at": offered_at,
            "applied_at": max(self.shown_at.values()),
            "settled_at": settled_at,
            "digests": [(moved.fragment, moved.version, moved.digest) for moved in self.take_moved()],
            "has_returned": self.has_returned,
            "members": min(len(report.commit.roster) for report in taken),
            "void_shards": sum(not shard.digest for report in taken for shard in report.commit.shards),
            "in_all": all(report.own_included for report in taken),
            "up_bytes": sum(report.bytes_up for report in closed),
            "down_bytes": sum(report.bytes_down for report in closed),
            "cpu_seconds": after["cpu_seconds"] - before["cpu_seconds"],
            "daemon_cpu_seconds": after.get("daemon_cpu_seconds", 0.0) - before.get("daemon_cpu_seconds", 0.0),
            "pace_mbit": (self.links.pace_bytes_per_second or 0.0) * 8e-6,
            "sent_bytes": self.links.traffic.sent_bytes,
            "received_bytes": self.received_bytes,
        }

    def take_moved(self) -> list[AppliedCommit]:
        """All versions that were reached since it was asked last."""
        taken, self.moved = self.moved, []
        return taken

    def usage(self) -> dict[str, float]:
        """CPU seconds and peak resident MB of this process and its daemon so far."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        found = {"cpu_seconds": own.ru_utime + own.ru_stime, "peak_mb": own.ru_maxrss / 1024}
        daemon = self.host.daemon.process_id
        if daemon is not None:
            fields = Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()
            ticks = int(fields[11]) + int(fields[12])
            status = Path(f"/proc/{daemon}/status").read_text()
            peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            found["daemon_cpu_seconds"] = ticks / 100
            found["daemon_peak_mb"] = int(peak.split()[1]) / 1024
        return found


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


async def _serve(options: argparse.Namespace) -> None:
    manifest = RunManifest(
        name="bench", averaging=AveragingSection(codec=options.codec, num_fragments=options.fragments)
    )
    base, rest = divmod(options.values, options.fragments)
    sizes = [base + (index < rest) for index in range(options.fragments)]
    with tempfile.TemporaryDirectory(prefix="bench-round-") as folder:
        identity = Identity.load_or_create(Path(folder) / "identity.key")
        async with P2pdHost(identity, [f"/ip4/{options.ip}/tcp/0"]) as host:
            member = Member(identity, host, manifest, sizes, paces=not options.no_pace)
            _say(peer_id=host.peer_id, address=host.addresses()[0])
            loop = asyncio.get_running_loop()
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                await _do(member, json.loads(line))
            await member.exchange.close()
            await member.links.close()


async def _do(member: Member, order: dict[str, Any]) -> None:
    if order["do"] == "meet":
        await member.meet({PeerId(peer_id): address for peer_id, address in order["members"].items()})
        _say(met=len(order["members"]) - 1)
    elif order["do"] == "prepare":
        await asyncio.to_thread(member.prepare, order["seed"])
        _say(prepared=True)
    elif order["do"] == "round":
        _say(**await member.round())
    elif order["do"] == "usage":
        _say(**member.usage())
    else:
        raise ValueError(f"unknown order {order['do']!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description="One member of benchmarks/bench_round.py; started by it.")
    parser.add_argument("--ip", default="127.0.0.1")
    parser.add_argument("--values", type=int, required=True)
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--codec", default="int4")
    parser.add_argument("--no-pace", action="store_true")
    options = parser.parse_args()
    uvloop.run(_serve(options))


if __name__ == "__main__":
    main()
