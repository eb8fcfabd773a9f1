"""The invariants of a chaos run: looked at after every event, every change of an anchor, and as time passes."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np

from averaging.codec.blocks import EncodedBlocks
from averaging.fragment.runtime import FragmentRuntime
from averaging.outer.outer_settings import OuterRule
from averaging.rounds.leader import Leading
from averaging.rounds.reducer import Reducing
from averaging.rounds.round_facts import PeerRefused, RoundStarted
from averaging.trust.leader_trust import LEAST_PATIENCE_SECONDS, PATIENCE_PACES
from averaging.wire.messages import HISTORY_COMMITS, KEPT_COMMITS, Commit, RosterEntry, ShardPlan
from dht.ground.host import PeerId
from tests.kit.chaos.free_records import RECORDS_OF_AN_HONEST_PEER
from tests.kit.chaos.ledger import Lineages, Node
from tests.kit.chaos.peer import TOKENS_PER_SECOND, ChaosPeer
from tests.kit.chaos.scenario import MIN_SHARD_VALUES, Profile, Scenario
from tests.kit.network.memory_networks import named, now

DEADLINES = 3
"""Nobody waits longer than so many hard deadlines after the last fault."""
ROUNDS_OF_A_FORK = 2
"""A fork may see so many whole rounds after everybody sees everybody again, or after it came up."""
ENOUGH_SENDS = 12
"""Of a fragment: so many contributions can miss their rounds, or expire, but not all of them."""
BYTES_PER_MEMBER = 100
"""Of a frame that names all members of a round, with signatures."""
STREAMS_OF_A_REPAIR = 7
"""One after the other: commits and digest of the claim, digests of others, header, their word, values, commits."""
GREETING_BYTES = 300
SHOWN_TOLERANCE = 1e-3
"""Between live parameters and what the state says they show, relative to the largest value."""
TRACED = 50
MEMORY_EVERY_LOOKS = 8
"""What a machine holds grows by one message at a time, and to count it takes longer than all else that is looked at."""
CONTAINERS = (dict, list, set, deque)
HALVES = (Leading, Reducing)
"""Of a round machine."""


class Checks:
    """Books and findings of one run.

    Attributes:
        violations: (invariant, what happened): fork, twice, age, mass, wait, memory, shown, left_out, weight, settled
            or error.
        seen: how often things happened that a run should meet.
        largest: what was held at most, in entries.
        disrupted_at: when the last fault began or ended.
    """

    def __init__(self, scenario: Scenario, rule: OuterRule, live: Callable[[], Sequence[ChaosPeer]]) -> None:
        self.scenario = scenario
        self.lineages = [Lineages(i, size, rule, self.blame) for i, size in enumerate(scenario.sizes)]
        self.violations: list[tuple[str, str]] = []
        self.seen: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()
        self.traced: deque[str] = deque(maxlen=TRACED)
        self.disrupted_at = 0.0
        self._live = live
        self._num_looks = 0
        self._num_names = num_names(scenario)
        self._connected_at: float | None = None
        self._began_at: dict[tuple[int, int, PeerId], float] = {}
        self._forked_at: dict[tuple[int, int], float] = {}
        self._waiting: dict[tuple[int, int], tuple[float, int]] = {}

    def on_round_began(self, report: RoundStarted) -> None:
        self._began_at.setdefault((report.fragment, report.version, report.leader), now())

    def check_weight(self, commit: Commit) -> None:
        """Nobody is in a commit with more tokens than a thousand such swarms could have trained until now.

        What a peer that tells no speed is believed to be capable of is far below that; forged numbers are beyond it.
        """
        most = 1000 * len(self.scenario.profiles) * TOKENS_PER_SECOND * (1.0 + now())
        members = {index for shard in commit.shards for index in shard.included}
        for entry in (commit.roster[index] for index in sorted(members)):
            if entry.tokens > most:
                what = f"version {commit.version} has {entry.tokens} tokens of {entry.peer_id[-6:]} in it"
                self.blame("weight", f"{what}; nobody can have trained more than {most:.0f}")

    def count_rounds_of_liars(self, peer: ChaosPeer, commit: Commit) -> None:
        """Count in `seen` the rounds of liars alone that honest peers apply: `followed liars`.

        Where more than a quarter of the trainers that a peer sees are liars, it can know no better: `misled by liars`.
        """
        honest = {named(number) for number, profile in enumerate(self.scenario.profiles) if not profile.lie}
        if honest.isdisjoint(commit.roster[index].peer_id for index in commit.included):
            trainers = [other for other in self._known_to(peer) if other.profile.is_trainer]
            self.seen["misled by liars" if _are_too_many_liars(trainers) else "followed liars"] += 1

    def on_left_out(self, peer: ChaosPeer, report: PeerRefused) -> None:
        """Whatever happens to lines and clocks, an honest peer leaves no honest peer out."""
        honest = {named(number) for number, profile in enumerate(self.scenario.profiles) if not profile.lie}
        if {peer.name, report.peer_id} <= honest:
            self.blame("left_out", f"peer {peer.number}: the honest peer {report.peer_id[-6:]} is {report.reason}")

    def may_be_misled(self, peer: ChaosPeer) -> bool:
        """Whether it lies itself, or more than a quarter of the live members that it knows do.

        After deaths and partitions a peer may be alone with liars. Then signed work decides, also that of liars; once
        it knows the others again it must come back, which `has_settled` looks at.
        """
        if peer.profile.lie:
            return True
        is_misled = _are_too_many_liars(self._known_to(peer))
        self.seen["misled"] += is_misled
        return is_misled

    def _known_to(self, peer: ChaosPeer) -> list[ChaosPeer]:
        return [other for other in self._live() if other is peer or other.name in peer.company.names()]

    def honest_rounds(self) -> int:
        """Commits with work of an honest peer that led to the heaviest anchors of honest peers, of all fragments."""
        honest = {named(number) for number, profile in enumerate(self.scenario.profiles) if not profile.lie}
        count = 0
        for lineages in self.lineages:
            tips = [lineages.nodes.get(peer.fragments[lineages.index].state.digest) for peer in self._honest()]
            node = max((tip for tip in tips if tip is not None), key=lambda tip: tip.tokens, default=None)
            while node is not None and node.commit is not None:
                commit = node.commit
                count += bool(honest & {commit.roster[index].peer_id for index in commit.included})
                node = node.parent
        return count

    def _honest(self) -> list[ChaosPeer]:
        return [peer for peer in self._live() if peer.is_open and not peer.profile.lie]

    def trace(self, line: str) -> None:
        if not self.violations:
            self.traced.append(f"{now():8.2f} s  {line}")

    def blame(self, invariant: str, what: str) -> None:
        self.violations.append((invariant, f"at {now():.2f} s {what}"))

    def after_event(self, peer: ChaosPeer, fragment: FragmentRuntime) -> None:
        self.seen["events"] += 1
        if not peer.profile.lie and not peer.is_dead and not self.violations:
            self.look_at(peer, fragment)

    def check_contribution(self, index: int, entry: RosterEntry, shard: ShardPlan, blocks: EncodedBlocks) -> None:
        """What a reducer averages is what its sender made."""
        work = self.lineages[index].sent.get((entry.peer_id, entry.sequence))
        if any(named(n) == entry.peer_id and p.lie for n, p in enumerate(self.scenario.profiles)):
            return
        if work is None:
            self.blame("mass", f"a contribution that {entry.peer_id[-6:]} never made is averaged")
            return
        expected = work.encoded.slice_blocks(shard.start, shard.end - shard.start)
        if b"".join(map(bytes, expected.pack())) != b"".join(map(bytes, blocks.pack())):
            self.blame("mass", f"other bytes than {entry.peer_id[-6:]} sent are averaged")

    def on_node(self, peer: ChaosPeer, index: int, node: Node) -> None:
        self.seen["commits"] += 1
        if node.commit is not None and not peer.profile.lie:
            self.check_weight(node.commit)
            self.count_rounds_of_liars(peer, node.commit)
        self._check_forks(index, peer, node)

    def look_around(self, *, is_whole: bool) -> None:
        """What time alone can break. `is_whole`: nothing stands between any two peers."""
        honest = [peer for peer in self._live() if not peer.profile.lie]
        names = {peer.name for peer in honest}
        sees_all = all(names <= {peer.name, *peer.company.names()} for peer in honest)
        if not (sees_all and is_whole and all(peer.is_open for peer in honest)):
            self._connected_at = None
        elif self._connected_at is None:
            self._connected_at = now()
        for peer in self._honest():
            for fragment in peer.fragments:
                self.look_at(peer, fragment)

    def look_at(self, peer: ChaosPeer, fragment: FragmentRuntime) -> None:
        """All that can be told from one fragment of one peer."""
        self._check_waiting(peer, fragment)
        self._num_looks += 1
        if self._num_looks % MEMORY_EVERY_LOOKS == 0:
            self._check_memory(peer, fragment)
        if fragment.busy.locked():
            return
        state, machine = fragment.state, fragment.machine
        if (state.version, state.digest[: len(machine.anchor_digest)]) != (machine.version, machine.anchor_digest):
            self.blame("fork", f"peer {peer.number}: machine at {machine.version}, state at {state.version}")
        if peer.is_open and peer.is_unchecked[fragment.index] and state.rule.mode != "streaming":
            peer.is_unchecked[fragment.index] = False
            gap = peer.check_shown(fragment.index)
            # Changes are added: what a large anchor of a liar rounded away does not come back.
            peer.largest[fragment.index] = max(peer.largest[fragment.index], float(np.abs(state.anchor).max()))
            if not gap <= SHOWN_TOLERANCE * (1.0 + peer.largest[fragment.index]):
                self.blame("shown", f"peer {peer.number}: the live parameters are off by {gap:.3g}")

    def _check_waiting(self, peer: ChaosPeer, fragment: FragmentRuntime) -> None:
        key, state = (peer.session, fragment.index), fragment.state
        has_work = state.pending is not None or state.unsent_tokens
        since, version = self._waiting.get(key, (now(), state.version))
        if not has_work or version != state.version or not peer.is_open or peer.profile.lie:
            since = now()
        self._waiting[key] = (since, state.version)
        waited = now() - max(since, self.disrupted_at)
        patience = self.patience_seconds(peer.profile) + self._repair_seconds(peer.number)
        if waited > DEADLINES * self.scenario.hard_seconds + patience:
            self.blame(
                "wait",
                f"peer {peer.number} has waited {waited:.0f} s with work for version {state.version}: "
                f"{fragment.machine._member} {fragment.machine.applying} repairing "
                f"{peer.exchange.applying.is_repairing(fragment)}",
            )

    def _check_memory(self, peer: ChaosPeer, fragment: FragmentRuntime) -> None:
        machine, store, num_peers = fragment.machine, fragment.store, self._num_names
        num_shards = 1 + machine.num_values // MIN_SHARD_VALUES
        versions = [key[0] for key in (*store._results, *store._inbound)]
        of_a_version = num_shards * num_peers * 4
        found = {
            "values in the round machine": (num_held(machine), KEPT_COMMITS + 40 + 4 * of_a_version),
            "results": (len(store._results), (HISTORY_COMMITS + 2) * of_a_version),
            "contributions": (sum(map(len, store._inbound.values())), 2 * of_a_version),
            "versions": (max(versions, default=0) - min(versions, default=0), HISTORY_COMMITS + 2),
            "errors": (len(store._errors._parts) + len(store._tentative), 2 * num_shards * num_peers),
            "digests": (len(fragment.digests), HISTORY_COMMITS + 2),
            "own contributions": (len(store._own), HISTORY_COMMITS + 1),
            "tasks": (len(peer.exchange._background._tasks), 20 + 10 * num_peers),
            "lanes": (len(peer.links._lanes), 2 * num_peers),
        }
        for what, (size, most) in found.items():
            self.largest[what] = max(self.largest[what], size)
            if size > most:
                self.blame("memory", f"peer {peer.number} holds {size} {what}; expected at most {most}")

    def _check_forks(self, index: int, peer: ChaosPeer | None = None, node: Node | None = None) -> None:
        tips: dict[int, Node] = {}
        for other in self._honest():
            state = other.fragments[index].state
            known = self.lineages[index].nodes.get(state.digest)
            if known is not None:
                tips[other.number] = node if other is peer and node is not None else known
        if not tips:
            return
        heaviest = max(tips.values(), key=lambda tip: (tip.tokens, tip.digest))
        for number, tip in tips.items():
            key = (number, index)
            if tip is heaviest or tip.is_in(heaviest):
                self._forked_at.pop(key, None)
                continue
            self.seen["forked"] += 1
            since = self._forked_at.setdefault(key, now())
            if self._connected_at is None:
                self._forked_at[key] = now()
                continue
            after = max(since, self._connected_at) + self._repair_seconds(number)
            num_rounds = max(self._rounds_since(index, heaviest, after), self._rounds_since(index, tip, after))
            if num_rounds > ROUNDS_OF_A_FORK:
                self.blame(
                    "fork",
                    f"fragment {index} of peer {number} is at version {tip.version} of a fork since {since:.1f} s "
                    f"(all are connected since {self._connected_at:.1f} s), the others at {heaviest.version}",
                )

    def overload(self, profile: Profile) -> float:
        """How many times the interval between two rounds its line needs to name their members."""
        scenario = self.scenario
        round_bytes = 2 * BYTES_PER_MEMBER * len(scenario.profiles) ** 2 * len(scenario.sizes)
        return 8 * round_bytes / (profile.upload_bits_per_second * scenario.profiles[0].interval_seconds)

    def patience_seconds(self, profile: Profile) -> float:
        """Among strangers, how long a peer by its own rule does not follow a round of few, and so waits longer."""
        if self.scenario.combine == "mean":
            return 0.0
        return max(LEAST_PATIENCE_SECONDS, PATIENCE_PACES * profile.interval_seconds)

    def _repair_seconds(self, number: int) -> float:
        """What a peer needs on its line from the news of a better anchor until it has it.

        The news is a record. Then streams follow each other, each with greeting, request and answer: two ways there
        and two back; and to every member, whose greetings share the upload.
        """
        scenario = self.scenario
        news = scenario.announce_seconds + scenario.record_delay_seconds
        greetings = 8 * GREETING_BYTES * len(scenario.profiles) / scenario.profiles[number].upload_bits_per_second
        return news + STREAMS_OF_A_REPAIR * (4 * scenario.latency_seconds[1] + greetings)

    def _rounds_since(self, index: int, tip: Node, after: float) -> int:
        """Rounds of this lineage that began after that time; those within an interval are one.

        A peer that was held up makes up for it with rounds that take no time, in which no news can travel.
        """
        count, node, next_at = 0, tip, math.inf
        while node.parent is not None and node.commit is not None and node.made_at >= after:
            began_at = self._began_at.get((index, node.commit.version, node.commit.leader), node.made_at)
            if began_at >= after and began_at <= next_at - self.scenario.profiles[0].interval_seconds:
                count, next_at = count + 1, began_at
            node = node.parent
        return count

    def has_settled(self) -> bool:
        """Whether nothing is under way and all honest peers have the same anchors."""
        peers = self._honest()
        anchors = {tuple((f.state.version, f.state.digest) for f in peer.fragments) for peer in peers}
        is_idle = all(
            f.machine.applying is None and not peer.exchange.applying.is_repairing(f)
            for peer in peers
            for f in peer.fragments
        )
        is_in = all(peer.is_open for peer in self._live() if not peer.profile.lie)
        return len(anchors) <= 1 and is_idle and is_in and not any(peer.has_work() for peer in peers)

    def check_committed(self, peer: ChaosPeer) -> None:
        """Once all has settled: whoever sent work again and again has some of it in an anchor.

        What it sent on a side of a fork that was left may all have expired. A line may also be too slow for the rounds:
        a plan and a commit name all members, and a leader sends both to everybody.
        """
        if self.overload(peer.profile) > 1:
            return
        sent, committed = 0, set()
        for fragment in peer.fragments:
            nodes = self.lineages[fragment.index].nodes
            anchor = nodes[fragment.state.digest]
            works = fragment.state.ledger.sent.values()  # type: ignore[attr-defined]
            sent += sum(nodes[work.anchor_digest].is_in(anchor) for work in works)
            committed.update(key for key in anchor.included if key[0] == peer.name)
        if sent >= ENOUGH_SENDS * len(peer.fragments) and not committed:
            self.blame("left_out", f"peer {peer.number} sent {sent} contributions, of which none is in an anchor")

    def unsettled(self) -> str:
        """Who has what, when it should be over."""
        told = []
        for peer in self._honest():
            for fragment in peer.fragments:
                state = fragment.state
                told.append(
                    f"peer {peer.number} fragment {fragment.index}: version {state.version} {state.digest.hex()[:8]} "
                    f"{state.lineage_tokens} tokens, unsent {state.unsent_tokens}, under way "
                    f"{state.pending is not None}, applying {fragment.machine.applying is not None}, "
                    f"repairing {peer.exchange.applying.is_repairing(fragment)}"
                )
        return "; ".join(told)


def _are_too_many_liars(peers: Sequence[ChaosPeer]) -> bool:
    return 4 * sum(bool(peer.profile.lie) for peer in peers) > len(peers)


def num_names(scenario: Scenario) -> int:
    """Keys that announce themselves, those of free records among them."""
    hostile = [profile for profile in scenario.profiles if profile.lie]
    num_keys = RECORDS_OF_AN_HONEST_PEER * (len(scenario.profiles) - len(hostile))
    return len(scenario.profiles) + num_keys * sum(profile.lie == "free_records" for profile in hostile)


def num_held(part: object) -> int:
    """Entries of all containers in a machine and in its halves; what it learned of durations has bounds of its own."""
    count = 0
    for value in vars(part).values():
        if isinstance(value, CONTAINERS):
            count += len(value)
        elif isinstance(value, HALVES):
            count += num_held(value)
    return count
