"""The invariants of rounds, checked after every event of every fragment, whatever goes wrong.

- fork: equal commits lead to equal anchors, and an anchor comes of commits.
- twice, mass: no work is in a lineage twice, and none is nowhere (`ledger.Ledger`); reducers average what was sent.
- age: no work is older than the rule allows.
- weight: nobody is in a commit with more tokens than a thousand such swarms could have trained.
- left_out: no honest peer leaves an honest peer out.
- wait: work does not wait longer than some hard deadlines after the last fault.
- memory: what a fragment holds has bounds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from functools import partial

from averaging.codec.blocks import EncodedBlocks
from averaging.fragment.runtime import FragmentRuntime
from averaging.outer.outer_settings import OuterRule
from averaging.rounds.leader import Leading
from averaging.rounds.presence import contributors
from averaging.rounds.reducer import Reducing
from averaging.rounds.round_facts import RoundCommitted
from averaging.rounds.waits import LAST_INTERVALS, QUIET_SECONDS
from averaging.wire.messages import HISTORY_COMMITS, KEPT_COMMITS, Commit, RosterEntry, ShardPlan
from dht.ground.host import PeerId
from peer.events.anchor_events import AnchorRepair
from peer.events.peer_events import Event, RefusedPeer
from peer.network.node.node import Node
from tests.simulator.books.audited import AuditedState, audit
from tests.simulator.books.ledger import Ledger, Lineages
from tests.simulator.books.ledger import Node as Anchor
from tests.simulator.scenarios.spec import SimulationSpec

DEADLINES = 4
"""Work waits at most so many hard deadlines after the last fault, beside its peer's patience and a repair."""
REPAIR_SECONDS = 20.0
MEMORY_EVERY_LOOKS = 8
"""What a machine holds grows by one message at a time, and counting it takes longer than all other checks."""
CONTAINERS = (dict, list, set, deque)
HALVES = (Leading, Reducing)
"""Of a round machine."""
MOST_VIOLATIONS = 5
"""After so many, one fault has shown itself often enough."""


class Books:
    """Books and violations of one simulation.

    Args:
        sizes: values of each fragment.
        names: PeerId of each simulated peer, by index.
        hostile: those of peers that do harm.
        now: virtual seconds.
        can_reach: whether two peers can reach each other now.

    Attributes:
        violations: sentences that begin with the invariant.
        seen: how often things happened that a swarm under faults should meet.
    """

    def __init__(
        self,
        spec: SimulationSpec,
        rule: OuterRule,
        sizes: Collection[int],
        names: Mapping[int, PeerId],
        hostile: frozenset[PeerId],
        now: Callable[[], float],
        can_reach: Callable[[PeerId, PeerId], bool],
    ) -> None:
        self.violations: list[str] = []
        self.seen: Counter[str] = Counter()
        self.lineages = [Lineages(index, size, rule, self.blame) for index, size in enumerate(sizes)]
        self._spec, self._rule, self._names, self._hostile = spec, rule, names, hostile
        self._now, self._can_reach = now, can_reach
        self._nodes: dict[int, Node] = {}
        self._honest = frozenset(names.values()) - hostile
        self._disrupted_at = 0.0
        self._num_looks = 0
        self._waiting: dict[tuple[int, int], tuple[float, int, int]] = {}
        profiles = [spec.profile(index) for index in range(spec.num_peers)]
        workload = spec.workload
        tokens = workload.tokens_per_step if workload.kind == "quadratic" else spec.manifest.step_tokens
        self._most_tokens_per_second = 1000 * sum(tokens / profile.step_seconds for profile in profiles)
        slowest = max(profile.step_seconds for profile in profiles) * spec.manifest.averaging.sync_every
        patience = LAST_INTERVALS * max(QUIET_SECONDS, slowest) if rule.is_strict else 0.0
        self._longest_wait = DEADLINES * spec.manifest.averaging.round_deadline_seconds + patience + REPAIR_SECONDS
        num_keys = sum(profile.lie.num_keys for profile in profiles if profile.lie is not None)
        self._num_names = spec.num_peers + num_keys

    def blame(self, invariant: str, what: str) -> None:
        """Note a violation."""
        if len(self.violations) < MOST_VIOLATIONS:
            self.violations.append(f"{invariant}: at {self._now():.2f} s {what}")

    def disrupted(self) -> None:
        """A fault begins or ends: nothing has waited for long."""
        self._disrupted_at = self._now()

    def follow(self, index: int, node: Node, ledgers: dict[int, Ledger]) -> None:
        """Keep books for a node that was just built; `ledgers` are those of its memory, by fragment."""
        self._nodes[index] = node
        for fragment in node.fragments:
            place, lineages = fragment.index, self.lineages[fragment.index]
            state, machine, store = audit(fragment)
            state.ledger = ledgers.setdefault(place, Ledger.empty(node.me, lineages, state.rule))
            state.blame = partial(self._blame_fragment, index, place)
            state.clock = self._now
            state.may_be_misled = partial(self._may_be_misled, node)
            state.on_node = partial(self._on_anchor, node.me)
            state.committing = partial(getattr, machine, "applying")
            store.check = partial(self._check_contribution, place)
            machine.watch = partial(self._after_event, index, node, fragment)

    def on_event(self, index: int, event: Event) -> None:
        """Peer `index` reported an event."""
        fact = event.fact
        self.seen[type(fact).__name__] += 1
        if self._names[index] in self._hostile:
            return
        if isinstance(fact, RefusedPeer) and fact.left_out_until is not None and fact.remote in self._honest:
            self.blame("left_out", f"peer {index}: the honest peer {fact.remote[-6:]} is left out: {fact.reason}")
        elif isinstance(fact, RoundCommitted):
            commit = self.lineages[fact.fragment].nodes[self._state(index, fact.fragment).digest].commit
            if commit is not None and self._is_of_liars(commit):
                self._followed_liars(index)
        elif isinstance(fact, AnchorRepair) and fact.is_done:
            self.seen["repaired"] += 1
            state = self._state(index, fact.fragment)
            commits = self.lineages[fact.fragment].commits_between(state.left[0], state.digest)
            if commits and all(map(self._is_of_liars, commits)):
                self._followed_liars(index)

    def _state(self, index: int, fragment: int) -> AuditedState:
        state: AuditedState = self._nodes[index].fragments[fragment].state  # type: ignore[assignment]
        return state

    def _is_of_liars(self, commit: Commit) -> bool:
        """Whether no honest peer led a round or was in it. An honest leader may have had no other offer in time."""
        return self._honest.isdisjoint({commit.leader, *contributors(commit)})

    def _followed_liars(self, index: int) -> None:
        """Count an honest peer that follows rounds in which only hostile peers were.

        It is alone with liars if it can reach no honest peer that it knows.
        """
        node = self._nodes[index]
        known = {record.peer_id for record in node.membership.members()} | set(node.guard.presence._met)
        is_alone = not any(self._can_reach(node.me, peer_id) for peer_id in known & self._honest - {node.me})
        self.seen["alone with liars" if is_alone else "followed liars"] += 1

    # ------------------------------------------------------------------------------------------ after every change

    def _blame_fragment(self, index: int, fragment: int, invariant: str, what: str) -> None:
        if self._names[index] not in self._hostile:
            self.blame(invariant, f"peer {index} fragment {fragment}: {what}")

    def _may_be_misled(self, node: Node) -> bool:
        """Whether a peer lies itself, or more than a quarter of the live members that it knows do.

        After deaths and partitions a peer may be alone with liars. Then signed work decides, also that of liars.
        """
        known = {node.me, *(record.peer_id for record in node.membership.members())}
        is_misled = node.me in self._hostile or 4 * len(known & self._hostile) > len(known)
        self.seen["misled"] += is_misled
        return is_misled

    def _on_anchor(self, peer_id: PeerId, anchor: Anchor) -> None:
        commit = anchor.commit
        if commit is not None and peer_id not in self._hostile:
            self._check_weight(commit)

    def _check_weight(self, commit: Commit) -> None:
        most = self._most_tokens_per_second * (1.0 + self._now())
        members = {index for shard in commit.shards for index in shard.included}
        for entry in (commit.roster[index] for index in sorted(members)):
            if entry.tokens > most:
                what = f"version {commit.version} has {entry.tokens} tokens of {entry.peer_id[-6:]} in it"
                self.blame("weight", f"{what}; nobody can have trained more than {most:.0f}")

    def _check_contribution(self, index: int, entry: RosterEntry, shard: ShardPlan, blocks: EncodedBlocks) -> None:
        """What a reducer averages is what its sender made."""
        if entry.peer_id not in self._honest:
            return
        work = self.lineages[index].sent.get((entry.peer_id, entry.sequence))
        if work is None:
            self.blame("mass", f"a contribution that {entry.peer_id[-6:]} never made is averaged")
            return
        expected = work.encoded.slice_blocks(shard.start, shard.end - shard.start)
        if b"".join(map(bytes, expected.pack())) != b"".join(map(bytes, blocks.pack())):
            self.blame("mass", f"other bytes than {entry.peer_id[-6:]} sent are averaged")

    def _after_event(self, index: int, node: Node, fragment: FragmentRuntime) -> None:
        self.seen["events"] += 1
        if node.me in self._hostile or self.violations:
            return
        self._check_waiting(index, node, fragment)
        self._num_looks += 1
        if self._num_looks % MEMORY_EVERY_LOOKS == 0:
            self._check_memory(index, node, fragment)
        state, machine = fragment.state, fragment.machine
        anchor = state.digest[: len(machine.anchor_digest)]
        if not fragment.busy.locked() and (state.version, anchor) != (machine.version, machine.anchor_digest):
            self.blame("fork", f"peer {index}: machine at {machine.version}, state at {state.version}")

    def _check_waiting(self, index: int, node: Node, fragment: FragmentRuntime) -> None:
        state, key = fragment.state, (index, fragment.index)
        session = node.who.session
        since, version, of_session = self._waiting.get(key, (self._now(), state.version, session))
        has_work = state.pending is not None or state.unsent_tokens
        if not has_work or version != state.version or of_session != session or not node.exchange.sending.takes_part:
            since = self._now()
        self._waiting[key] = (since, state.version, session)
        waited = self._now() - max(since, self._disrupted_at)
        if waited > self._longest_wait:
            self.blame("wait", f"peer {index} has waited {waited:.0f} s with work for version {state.version}")

    def _check_memory(self, index: int, node: Node, fragment: FragmentRuntime) -> None:
        machine, store = fragment.machine, fragment.store
        num_shards = 1 + machine.num_values // self._spec.min_shard_values
        versions = [key[0] for key in store._results] + [key[0] for key in store._inbound]
        of_a_version = num_shards * self._num_names * 4
        found = {
            "values in the round machine": (num_held(machine), KEPT_COMMITS + 40 + 4 * of_a_version),
            "results": (len(store._results), (HISTORY_COMMITS + 2) * of_a_version),
            "contributions": (sum(map(len, store._inbound.values())), 2 * of_a_version),
            "versions": (max(versions, default=0) - min(versions, default=0), HISTORY_COMMITS + 2),
            "errors": (len(store._errors._parts) + len(store._tentative), 2 * num_shards * self._num_names),
            "digests": (len(fragment.log.digests), HISTORY_COMMITS + 2),
            "own contributions": (len(store.own_work), HISTORY_COMMITS + 1),
            "tasks": (len(node.exchange._background._tasks), 20 + 10 * self._num_names),
            "lanes": (len(node.links._lanes), 2 * self._num_names),
        }
        for what, (size, most) in found.items():
            if size > most:
                self.blame("memory", f"peer {index} holds {size} {what}; expected at most {most}")


def num_held(part: object) -> int:
    """Entries of all containers in a machine and in its halves; what it learned of durations has bounds of its own."""
    count = 0
    for value in vars(part).values():
        if isinstance(value, CONTAINERS):
            count += len(value)
        elif isinstance(value, HALVES):
            count += num_held(value)
    return count
