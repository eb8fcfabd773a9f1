"""Round machines in cells, joined by queues; each encoded mean is the set of contributions that are in it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from averaging.cells.cell_scope import CellScope
from averaging.cells.formation import CellRule
from averaging.cells.top_leader import CellTiming
from averaging.rounds.learned_durations import RoundTiming
from averaging.rounds.machine_events import Effect, PartialArrived, ReduceSlice, SendPartials, SliceReduced
from averaging.rounds.round_machine import RoundMachine
from averaging.wire.cell_messages import CellsCommit, Partial
from averaging.wire.field_checks import Limits
from averaging.wire.frames import commit_digest_whole, decode, encode
from averaging.wire.messages import CellRow, Commit, Result
from dht.host import PeerId
from tests.kit.notaries import CHECKER, notary_of
from tests.kit.rounds.round_swarm import BLOCK, Member, RoundSwarm, Unit, digest_of

Content = frozenset[tuple[PeerId, int]]
"""(whose, which contribution) of each that is in a mean."""


def row_of(name: str, commit: Commit) -> CellRow:
    """What a cell brings when all weigh as much as they have tokens."""
    return CellRow(
        name,
        commit.leader,
        commit_digest_whole(commit),
        len(commit.roster),
        commit.tokens,
        float(commit.tokens),
        commit.tokens,
        float(commit.tokens),
        0,
    )


class CellSwarm(RoundSwarm):
    """As `RoundSwarm`; `sites` gives each peer its site, else cells of `cell_size` are formed by hash."""

    def __init__(self, num_peers: int, *, cell_size: int = 2, sites: list[str] | None = None, **settings: Any) -> None:
        self.cell_size = cell_size
        self.sites = sites
        self.checks_frames = False
        self.contents: dict[bytes, Content] = {}
        self.partials: dict[tuple[PeerId, int, PeerId, int], Content] = {}
        self.held: dict[tuple[PeerId, PeerId, Partial], Content] = {}
        super().__init__(num_peers, **settings)

    def _new_member(self, name: PeerId, hard_seconds: float) -> Member:
        sites = self.sites
        site_of = None if sites is None else lambda peer_id: sites[self.names.index(peer_id)]
        machine = RoundMachine(
            name,
            "run",
            0,
            self.num_blocks * BLOCK,
            BLOCK,
            RoundTiming.with_bounds(hard_seconds),
            notary_of(name),
            scope_of=partial(
                CellScope,
                rule=CellRule(self.cell_size, site_of),
                timing=CellTiming.with_bounds(hard_seconds),
                weigh=row_of,
            ),
        )
        machine.anchor_digest = digest_of("start")
        return Member(machine)

    def machine(self, name: PeerId) -> RoundMachine:
        return self.members[name].machine

    def scope(self, name: PeerId) -> CellScope:
        scope = self.machine(name).scope
        assert isinstance(scope, CellScope)
        return scope

    def cells(self) -> dict[str, list[PeerId]]:
        """Live members of each cell."""
        found: dict[str, list[PeerId]] = {}
        for name in self.live():
            found.setdefault(self.scope(name).cell, []).append(name)
        return found

    # ---------------------------------------------------------------------------------------- what the exchange does

    def _perform(self, name: PeerId, effect: Effect) -> None:
        if isinstance(effect, SendPartials):
            order = effect.order
            for number, row in zip(order.numbers, order.slices, strict=True):
                content = self._own_partial(name, effect, row.start)
                if row.owner != name and content:
                    values, run = (row.start, row.end), (order.run_start, order.run_end)
                    head = (*order.place, order.leader, number, *values, order.cell)
                    partial = Partial(*head, 1.0, *run, order.credential)
                    self._post(name, row.owner, "data", ("partial", partial, content))
        elif isinstance(effect, ReduceSlice):
            self.tasks.append(("reduce_slice", name, effect))
        else:
            super()._perform(name, effect)

    def _own_partial(self, name: PeerId, effect: SendPartials | ReduceSlice, position: int) -> Content:
        plan = self.machine(name).plan_under(effect.order.cell_attempt, effect.leader)
        assert plan is not None
        index = next(index for index, shard in enumerate(plan.shards) if shard.start <= position < shard.end)
        return self.partials.get((name, plan.attempt, effect.leader, index), frozenset())

    def _post(self, sender: PeerId, to: PeerId, lane: str, message: Any) -> None:
        if self.checks_frames and not isinstance(message, tuple):
            # What is said can be said on the wire.
            limits = Limits((self.num_blocks * BLOCK,), 0)
            assert decode(encode(message), sender, limits)[0] == message
        super()._post(sender, to, lane, message)

    def _arrive(self, sender: PeerId, to: PeerId, message: Any) -> None:
        kind = message[0] if isinstance(message, tuple) else ""
        if kind == "partial":
            _, partial, content = message
            self.held[to, sender, partial] = content
            if partial.version == self.machine(to).version:
                self.step(to, PartialArrived(sender, partial))
        elif kind == "slice":
            _, number, digest = message
            is_new = digest not in self.members[to].results
            self.members[to].results.add(digest)
            if is_new:
                for other in self.scope(to).relays(sender, number):
                    self._post(to, other, "data", message)
        else:
            super()._arrive(sender, to, message)

    def _result(self, name: PeerId, mean: Result) -> tuple[Any, ...]:
        kind, digest = super()._result(name, mean)
        return ("slice", mean.shard, digest) if self.scope(name).cell else (kind, digest)

    def _reduce(self, name: PeerId, effect: Any) -> None:
        if not self.scope(name).cell:
            super()._reduce(name, effect)
            return
        member, plan = self.members[name], effect.plan
        arrived = dict(member.contributions.get((plan.version, plan.attempt, effect.leader, effect.shard), {}))
        if member.pending is not None:
            arrived[name] = member.pending[0]
        content = frozenset(
            (plan.roster[index].peer_id, plan.roster[index].sequence)
            for index in effect.members
            if arrived.get(plan.roster[index].peer_id) == plan.roster[index].sequence
        )
        if member.machine.version == plan.version:
            self.partials[(name, plan.attempt, effect.leader, effect.shard)] = content
        super()._reduce(name, effect)

    def _reduce_slice(self, name: PeerId, effect: ReduceSlice) -> None:
        order, number = effect.order, effect.order.numbers[effect.position]
        row = order.slices[effect.position]
        held = {partial.cell: self.held[name, sender, partial] for sender, partial in effect.partials}
        held[order.cell] = self._own_partial(name, effect, row.start) if self._is_current(name, order) else frozenset()
        included = tuple(sorted(cell for cell in held if held[cell]))
        if not included or not self._is_current(name, order):
            return
        content: Content = frozenset().union(*(held[cell] for cell in included))
        digest = digest_of(order.version, order.leader, number, sorted(content), included)
        self.contents[digest] = content
        self.reduced[(name, order.version, number)] = digest
        self.members[name].results.add(digest)
        self.step(name, SliceReduced(order, effect.position, digest, included))

    def _is_current(self, name: PeerId, order: Any) -> bool:
        machine = self.machine(name)
        return machine.version == order.version and machine.anchor_digest == order.anchor_digest

    def _tells(self, name: PeerId, commit: Commit) -> bool:
        return self.scope(name).knows_own_part(commit)

    # ----------------------------------------------------------------------------------------------------- verdicts

    def committed_units(self, name: PeerId) -> list[Unit]:
        """All units in a member's anchor, from what the means really hold."""
        found: list[Unit] = []
        for commit in self.members[name].lineage:
            for index, result in enumerate(commit.results):
                if not result.digest:
                    continue
                if isinstance(commit, CellsCommit):
                    content = self.contents[result.digest]
                else:
                    members = [commit.roster[member] for member in commit.members_in(index)]
                    content = frozenset((entry.peer_id, entry.sequence) for entry in members)
                for key in sorted(content):
                    blocks = range(result.start // BLOCK, result.end // BLOCK)
                    found += [unit for unit in self.sent_units[key] if unit[2] in blocks]
        return found

    def assert_parts_are_true(self) -> None:
        """Each commit says of its own cell's members exactly what the means hold, and is signed by all who must."""
        for name in self.live():
            for commit in self.members[name].lineage:
                assert not CHECKER.objection(commit)
                if not isinstance(commit, CellsCommit):
                    continue
                cell = {entry.peer_id for entry in commit.roster}
                for index, result in enumerate(commit.results):
                    told = {(commit.roster[m].peer_id, commit.roster[m].sequence) for m in commit.members_in(index)}
                    content = self.contents[result.digest] if result.digest else frozenset()
                    assert told == {key for key in content if key[0] in cell}

    def assert_once(self) -> None:
        counts = Counter(self.committed_units(self.live()[0]))
        assert not [unit for unit, count in counts.items() if count > 1], "work was committed twice"
