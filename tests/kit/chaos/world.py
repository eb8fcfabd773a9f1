"""One chaos run: peers, the faults of its scenario, and the invariants, looked at after every event."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

import averaging.outer.outer_step
import averaging.rounds.shard_plan
from averaging.arrays import F32
from averaging.outer.outer_settings import OuterRule
from averaging.rounds.round_facts import PeerRefused, Report, RoundStarted
from averaging.wire.messages import Message
from dht.ground.host import PeerId
from dht.records.peer_record import PeerRecord
from peer.config.manifest import ROBUST_CLIP_RATIOS
from tests.kit.chaos.checks import Checks
from tests.kit.chaos.ledger import UNIT
from tests.kit.chaos.peer import ChaosPeer
from tests.kit.chaos.scenario import MIN_SHARD_VALUES, Fault, Scenario, scenario_of
from tests.kit.network.memory_networks import named, now
from tests.simulator.network.host import MemoryNetwork
from tests.simulator.virtual_time import run_virtual

SETTLE_DEADLINES = 6
"""How long the swarm may take, after training, until nothing is under way and all anchors are equal; in deadlines."""


@dataclass(frozen=True)
class Outcome:
    """What a run found: violated invariants with what happened, what was met, and the last things that happened."""

    scenario: Scenario
    violations: tuple[tuple[str, str], ...]
    seen: Counter[str]
    trace: tuple[str, ...]
    rounds_per_minute: float
    """With work of an honest peer, in all fragments, until training ended."""

    def describe(self) -> str:
        found = [f"{invariant}: {what}" for invariant, what in self.violations]
        lines = [self.scenario.describe(), "violated:", *found, "before that:", *self.trace]
        replay = f"python -m pytest tests/swarms/test_chaos.py --chaos-seed {self.scenario.seed}"
        return "\n".join(["", *lines, f"again: {replay}"])


class World:
    """The swarm of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        ratios = (None, None) if scenario.combine == "mean" else ROBUST_CLIP_RATIOS
        self.rule = OuterRule(
            scenario.mode,
            0.5,
            0.5,
            overlay_gain=0.7,
            own_weight=0.7,
            staleness_limit=scenario.staleness_limit,
            residual_decay=scenario.residual_decay,
            combine=scenario.combine,  # type: ignore[arg-type]
            clip_norm_ratio=ratios[0],
            clip_weight_ratio=ratios[1],
        )
        self.is_exact = scenario.codec == "fp32"
        self.network = MemoryNetwork(
            scenario.seed,
            latency_seconds=scenario.latency_seconds,
            stream_loss=scenario.stream_loss,
            partition_break_seconds=scenario.partition_break_seconds,
            window_bytes=scenario.window_bytes,
        )
        self.is_training, self.is_over, self.is_calm = True, False, False
        self.rounds_per_minute = 0.0
        self.peers: dict[int, ChaosPeer] = {}
        self.checks = Checks(scenario, self.rule, self.live)
        self._chance = self.chance_of("world")
        self._lives: Counter[int] = Counter()
        self._stopping: dict[int, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ambushes: list[Fault] = []
        self._is_split = False
        self._stalled: set[int] = set()

    # ----------------------------------------------------------------------------------------------------- the run

    async def play(self) -> None:
        scenario = self.scenario
        for lineages in self.checks.lineages:
            state = np.zeros(scenario.sizes[lineages.index], dtype=np.float32)
            lineages.begin(averaging.outer.outer_step.anchor_digest(self.start_of(lineages.index), state))
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: self.checks.blame("error", f"{context.get('message')}: {context.get('exception')!r}")
        )
        faults = self._spawn(self._happen())
        await self._watch_until(lambda: faults.done() and now() > scenario.chaos_seconds)
        self._end_chaos()
        calm_until = now() + scenario.calm_seconds
        await self._watch_until(lambda: now() > calm_until)
        self.is_training = False
        self.rounds_per_minute = 60 * self.checks.honest_rounds() / now()
        self._send_liars_away()
        # Each of the last rounds may be one of few, which the slowest peer follows when its patience is over.
        patience = max(map(self.checks.patience_seconds, scenario.profiles))
        slowness = max(1.0, *map(self.checks.overload, scenario.profiles))
        settle_until = now() + SETTLE_DEADLINES * max(scenario.hard_seconds, patience) * slowness
        await self._watch_until(lambda: now() > settle_until or self.checks.has_settled())
        if not self.checks.violations and not self.checks.has_settled():
            self.checks.blame("settled", self.checks.unsettled())
        if not self.checks.violations:
            for peer in self.honest():
                for fragment in peer.fragments:
                    self.checks.look_at(peer, fragment)
                self.checks.check_committed(peer)
        self.is_over = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._stopping.values(), return_exceptions=True)
        await asyncio.gather(*(peer.stop() for peer in self.peers.values() if not peer.is_dead))
        for error in self.network.handler_errors:
            self.checks.blame("error", f"a handler failed: {error!r}")

    async def _watch_until(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough() and not self.checks.violations:
            await asyncio.sleep(0.5)
            self.checks.look_around(is_whole=not self._is_split and not self._stalled)

    async def _happen(self) -> None:
        starts = [Fault(p.starts_at_seconds, "return_empty", (n,)) for n, p in enumerate(self.scenario.profiles)]
        for fault in sorted([*starts, *self.scenario.faults], key=lambda fault: fault.at_seconds):
            await asyncio.sleep(max(0.0, fault.at_seconds - now()))
            self.checks.trace(f"fault: {fault}")
            if fault.kind.startswith(("crash_", "stall_")):
                self._ambushes.append(fault)
                continue
            self.checks.disrupted_at = now()
            for number in fault.peers or (-1,):
                self._do(fault, number)

    def _do(self, fault: Fault, number: int) -> None:
        peer = self.peers.get(number)
        is_live = peer is not None and not peer.is_dead
        self.checks.seen[fault.kind] += 1
        if fault.kind == "partition":
            self._is_split = True
            self.network.partition([self.peers[n].name for n in fault.peers if n in self.peers])
        elif fault.kind == "heal":
            self._is_split = False
            self.network.heal()
        elif fault.kind in ("return_empty", "return_with_state") and not is_live:
            self._tasks.append(self._spawn(self._start(number, with_state=fault.kind == "return_with_state")))
        elif peer is None or not is_live:
            return
        elif fault.kind == "crash":
            self._crash(peer)
        elif fault.kind == "leave":
            self._stopping[number] = self._spawn(peer.leave())
        elif fault.kind == "stall":
            self._stalled.add(number)
            self.network.stall(peer.name)
        elif fault.kind == "resume":
            self._stalled.discard(number)
            self.network.resume(peer.name)
        elif fault.kind == "reset_line":
            self.network.crash(peer.name)
            self.network.restore(peer.name)
        elif fault.kind in ("stale_view", "fresh_view"):
            peer.company.is_frozen = fault.kind == "stale_view"
            peer.on_view()

    def _crash(self, peer: ChaosPeer) -> None:
        self.network.crash(peer.name)
        peer.is_dead = True
        self._stopping[peer.number] = self._spawn(peer.stop())

    async def _start(self, number: int, *, with_state: bool) -> None:
        old = self.peers.get(number)
        if number in self._stopping:
            await asyncio.wait([self._stopping[number]])
        if old is not None and not old.is_dead:
            return
        self._lives[number] += 1
        self.peers[number] = ChaosPeer(self, number, self._lives[number], old if with_state else None)

    def _end_chaos(self) -> None:
        """From here on nothing goes wrong any more but what hostile peers do that stay."""
        self.is_calm = True
        self.checks.disrupted_at = now()
        self._ambushes.clear()
        self.network._stream_loss = 0.0
        self.network.heal()
        self._is_split = False
        for peer in self.peers.values():
            self.network.resume(peer.name)
            peer.company.is_frozen = False
        self._stalled.clear()
        if self.scenario.hostile_until == "chaos ends":
            self._send_liars_away()
        for number in sorted(self.peers):
            if number not in self._stalled and not self.peers[number].is_dead:
                self.peers[number].on_view()

    def _send_liars_away(self) -> None:
        for peer in self.peers.values():
            if peer.profile.lie and not peer.is_dead:
                self._crash(peer)

    @staticmethod
    def _spawn(coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        return task

    # ------------------------------------------------------------------------------------------- what peers ask for

    def chance_of(self, what: str) -> random.Random:
        return random.Random(f"chaos {self.scenario.seed} {what}")

    def start_of(self, index: int) -> F32:
        """The initial parameters of a fragment."""
        chance = self.chance_of(f"start {index}")
        size = self.scenario.sizes[index]
        return np.array([chance.randint(-512, 512) * UNIT for _ in range(size)], dtype=np.float32)

    def live(self) -> list[ChaosPeer]:
        return [peer for _, peer in sorted(self.peers.items()) if not peer.is_dead]

    def honest(self) -> list[ChaosPeer]:
        return [peer for peer in self.live() if peer.is_open and not peer.profile.lie]

    def has_honest(self, names: list[PeerId]) -> bool:
        """Whether one of these peers does not lie."""
        return any(named(n) in names for n, profile in enumerate(self.scenario.profiles) if not profile.lie)

    def introduce(self, newcomer: ChaosPeer) -> None:
        """A peer that starts looks into the DHT."""
        for peer in self.live():
            if peer is not newcomer and peer.is_open and self.network.can_reach(peer.name, newcomer.name):
                self._deliver(newcomer, [peer.record()])

    def spread(self, peer: ChaosPeer, records: Sequence[PeerRecord]) -> None:
        """All records that a peer publishes at once come together, or are lost together."""
        for other in self.live():
            reaches = self.network.can_reach(peer.name, other.name)
            is_lost = not self.is_calm and self._chance.random() < self.scenario.record_loss
            if other is not peer and reaches and not is_lost:
                delay = self.scenario.record_delay_seconds * self._chance.random()
                asyncio.get_running_loop().call_later(delay, self._deliver, other, records)

    def _deliver(self, to: ChaosPeer, records: Sequence[PeerRecord]) -> None:
        if not to.is_dead and not self.is_over:
            to.company.hear(records, 3 * self.scenario.announce_seconds + 2 * self.scenario.record_delay_seconds)

    def tampering(self, message: Message) -> list[float] | None:
        """When a message arrives, in seconds from now and maybe more than once; None: now, once."""
        if self.is_calm or not (self.scenario.hold or self.scenario.duplicate):
            return None
        luck, delay = self._chance.random(), self._chance.uniform(0.0, self.scenario.longest_hold_seconds)
        if luck < self.scenario.hold:
            self.checks.seen["held"] += 1
            return [delay]
        if luck < self.scenario.hold + self.scenario.duplicate:
            self.checks.seen["duplicated"] += 1
            return [0.0, delay]
        return None

    def on_report(self, peer: ChaosPeer, report: Report) -> None:
        self.checks.seen[type(report).__name__] += 1
        if isinstance(report, PeerRefused) and report.is_left_out:
            self.checks.on_left_out(peer, report)
        text = repr(report)
        self.checks.trace(
            f"peer {peer.number}: {text if len(text) < 200 else type(report).__name__ + f' {text[:60]}...'}"
        )

    def on_round_began(self, peer: ChaosPeer, report: RoundStarted) -> None:
        self.checks.on_round_began(report)
        if self._ambushes and report.num_contributors >= 2:
            fault = self._ambushes[0]
            machine = peer.fragments[report.fragment].machine
            victim = next((other for other in self.live() if other.name == report.leader), None)
            if fault.kind == "crash_reducer":
                victim = peer if machine.is_reducing and peer.name != report.leader else None
            if victim is not None:
                self._ambushes.pop(0)
                asyncio.get_running_loop().call_soon(self._spring, fault, victim)

    def _spring(self, ambush: Fault, victim: ChaosPeer) -> None:
        if victim.is_dead:
            return
        self.checks.seen["ambushed"] += 1
        self.checks.trace(f"ambush: {ambush.kind} hits {victim.number}")
        kind, back = ("stall", "resume") if ambush.kind == "stall_leader" else ("crash", "return_with_state")
        comes_back = kind == "stall" or victim.number == 0 or self._chance.random() < 0.5
        self.checks.disrupted_at = now()
        self._do(Fault(now(), kind, (victim.number,)), victim.number)  # type: ignore[arg-type]
        seconds = self._chance.uniform(1.0, 20.0)
        if comes_back:
            self._tasks.append(self._spawn(self._later(seconds, Fault(now(), back, (victim.number,)))))  # type: ignore[arg-type]

    async def _later(self, seconds: float, fault: Fault) -> None:
        await asyncio.sleep(seconds)
        self.checks.disrupted_at = now()
        self._do(fault, fault.peers[0])


class _Errors(logging.Handler):
    """What the project's modules log as errors is a violation."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self._world.checks.blame("error", f"{record.name} logged: {record.getMessage()}: {cause!r}")


def run_scenario(scenario: Scenario) -> Outcome:
    """Play one scenario to its end, or to the first violation."""

    async def play() -> World:
        world = World(scenario)
        handler = _Errors(world)
        for name in ("dht", "averaging", "peer", "asyncio"):
            logging.getLogger(name).addHandler(handler)
        try:
            await world.play()
        finally:
            for name in ("dht", "averaging", "peer", "asyncio"):
                logging.getLogger(name).removeHandler(handler)
        return world

    with mock.patch.object(averaging.rounds.shard_plan, "MIN_SHARD_VALUES", MIN_SHARD_VALUES):
        world = run_virtual(play(), seed=scenario.seed)
    checks = world.checks
    return Outcome(scenario, tuple(checks.violations[:5]), checks.seen, tuple(checks.traced), world.rounds_per_minute)


def run_seed(seed: int) -> Outcome:
    """The run of a seed."""
    return run_scenario(scenario_of(seed))
