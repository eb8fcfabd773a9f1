"""`SwarmObserver`: observes the swarm every few seconds and updates the state. It publishes nothing about itself."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from dashboard.observe.dashboard_state import DashboardState, fold
from dashboard.observe.fault_barrier import keep_going
from dashboard.observe.join_addresses import JoinRule, join_addresses, with_later
from dashboard.observe.listed_peers import Look
from dashboard.observe.shown_manifest import run_facts
from dht.ground.errors import LocalFault, PeerFault
from dht.ground.store import RecordStore
from dht.records.key_levels import Levels
from dht.records.peer_record import PeerRecord, decode_peer_record
from dht.records.signature_cache import VerifiedRecords
from dht.records.signed_manifest import RunRecord, decode_run_record

LOOK_SECONDS: Final = 2.0
"""Seconds between two observations. Peers renew their records about every ten seconds. An observation costs a few KiB,
and some tens in a swarm of thousands, where it reads a part of the records (`dht/records/key_levels.py`).
"""
RUN_SECONDS: Final = 60.0
"""Longest time between two readings of the run record, whose revisions are rare. It is read as often as peers announce:
when the owner ends a run at once, its seeds stay for three announcements."""
BOOTSTRAP_SECONDS: Final = 20.0
"""Seconds between two rounds of dialling once the swarm is found; until then each observation dials."""
MAX_RECORDS: Final = 10_000
"""Records decoded in one observation; checking a new signature takes 0.3 ms, so this bounds a flood to a few seconds of
one core."""

Gather = Callable[[RunRecord, DashboardState], Awaitable[None]]
"""Fetches the members' commits of the rounds up to this state."""


log = logging.getLogger(__name__)


@dataclass(eq=False)
class SwarmObserver:
    """Observes one run through a `RecordStore`; `run` continues until it is cancelled.

    Attributes:
        addresses: multiaddrs of members to dial until one answers.
        later: returns further multiaddrs known by then; called before each dial.
        wall_clock: returns unix seconds.
        on_state: called after each observation; must not block.
        gather: called repeatedly once the run's manifest is known; without it, rounds come only from the versions in
            peer records.
        vouched: returns the peers that signed commits list; in a flood of keys they keep their rows.
        work: returns each peer's work in recent signed commits.
        withdrawn: returns the peers whose name must not be shown.
        faults: returns the addresses that did not answer the last dial.
        rule: choice of the addresses that may be shown to all visitors.
        tell: called with a sentence when observing or collecting failed unexpectedly; both continue.
    """

    run_id: str
    store: RecordStore
    addresses: Sequence[str]
    _: KW_ONLY
    wall_clock: Callable[[], float]
    on_state: Callable[[DashboardState], None]
    gather: Gather | None = None
    later: Callable[[], Sequence[str]] = tuple
    vouched: Callable[[], Collection[str]] = tuple
    work: Callable[[], Mapping[str, int]] = dict
    withdrawn: Callable[[], Collection[str]] = tuple
    faults: Callable[[], Collection[str]] = tuple
    rule: JoinRule = field(default_factory=JoinRule)
    tell: Callable[[str], None] = log.error
    state: DashboardState = field(init=False)
    """Earlier knowledge of the run may be put here; for a run that has ended it stays."""
    _verified: VerifiedRecords = field(default_factory=lambda: VerifiedRecords(MAX_RECORDS))
    _levels: Levels = field(default_factory=Levels)
    _run_record: RunRecord | None = None
    _num_members: int = 0
    _dialled: Sequence[str] = ()
    _run_read_at: float = -math.inf
    _dialled_at: float = -math.inf

    def __post_init__(self) -> None:
        now = self.wall_clock()
        self.state = DashboardState(
            run_id=self.run_id,
            started_at=now,
            now=now,
            join_addresses=self.rule.asked,
            install=self.rule.install,
        )

    async def run(self) -> None:
        """Observe forever."""
        gather = self.gather
        async with asyncio.TaskGroup() as tasks:
            if gather is not None:
                gathering = keep_going(lambda: self._gather_on(gather), "Collecting signed commits", self.tell)
                tasks.create_task(gathering, name="signed commits")
            await keep_going(self._look_on, "Observing the swarm", self.tell)

    async def look(self) -> None:
        """Observe once, and pass the new state to `on_state`. The state includes problems of the network."""
        records: list[PeerRecord] = []
        num_invalid, problem = 0, ""
        try:
            await self._meet_members()
            await self._read_run()
            records, num_invalid = self._decode((await self._read_records())[:MAX_RECORDS])
        except (PeerFault, LocalFault) as fault:
            problem = str(fault)
            log.warning("an observation of the swarm failed: %s", fault)
        look = Look(
            now=self.wall_clock(),
            num_members=self._num_members,
            records=records,
            vouched=self.vouched(),
            work=self.work(),
            withdrawn=self.withdrawn(),
            num_invalid_records=num_invalid,
            problem=problem,
        )
        state = fold(self.state, look)
        shown = join_addresses(state, self._dialled, self.faults(), self.rule)
        self.state = replace(state, join_addresses=shown)
        self._levels.note(row.record.level for row in self.state.peers if row.condition == "here")
        self.on_state(self.state)

    async def _meet_members(self) -> None:
        if self._num_members and self._is_recent(self._dialled_at, BOOTSTRAP_SECONDS):
            return
        self._dialled = with_later(self.addresses, self.later())
        self._num_members = await self.store.bootstrap(self._dialled)
        self._dialled_at = self.wall_clock()

    async def _read_run(self) -> None:
        run = self.state.run
        announce_seconds = run.announce_seconds if run is not None else RUN_SECONDS
        if self._run_record is not None and self._is_recent(self._run_read_at, min(RUN_SECONDS, announce_seconds)):
            return
        data = await self.store.fetch_run(self.state.run_id)
        if data is None:
            return
        record = decode_run_record(data, run_id=self.state.run_id, verified=self._verified)
        if self._run_record is None or record.revision > self._run_record.revision:
            self._run_record, self.state = record, replace(self.state, run=run_facts(record))
        self._run_read_at = self.wall_clock()

    def _is_recent(self, at: float, seconds: float) -> bool:
        """Return whether `at` was less than `seconds` ago; False if the clock was set back since."""
        return 0 <= self.wall_clock() - at < seconds

    async def _read_records(self) -> list[bytes]:
        """Read the records; in a large swarm a part, and the next part at the next observation. `fold` keeps all
        peers.
        """
        closely, briefly = self._levels.next_keys(LOOK_SECONDS)
        found = await self.store.fetch_peers(self.state.run_id, closely) if closely else []
        return found + (await self.store.fetch_peers(self.state.run_id, briefly, 1) if briefly else [])

    def _decode(self, found: Sequence[bytes]) -> tuple[list[PeerRecord], int]:
        now = self.wall_clock()
        records = []
        for data in found:
            try:
                records.append(decode_peer_record(data, run_id=self.state.run_id, now=now, verified=self._verified))
            except PeerFault as fault:
                log.debug("a record is not shown: %s", fault)
        return records, len(found) - len(records)

    async def _look_on(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _gather_on(self, gather: Gather) -> None:
        while True:
            if self._run_record is not None:
                await gather(self._run_record, self.state)
            await asyncio.sleep(LOOK_SECONDS)
