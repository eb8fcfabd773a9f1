"""Every kind of process of three peers is killed again and again, and nothing that was committed is lost.

How often: `--kills N`. The order is drawn from `SEED` and printed. Each kill comes at a random moment: in the middle of
whatever the victim does just after an event of a kind that is drawn too.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from averaging.rounds.round_facts import AppliedCommit, Fact, RoundCommitted, RoundStarted, SentContribution
from dht.ground.host import PeerId
from peer.events.anchor_events import AnchorRepair
from peer.events.peer_events import JoinedRun, LeftRun, PartRestarted, TrainingProgressed
from tests.kit.processes.process_swarm import PeerProcess, ProcessSwarm, process_swarm, wait_until

SEED = 4
FRAGMENTS = (0, 1)
BACK_SECONDS = 180.0
"""For a killed trainer to be started again and to contribute, while the other processes want the cores too."""
MOMENTS: tuple[type[Fact], ...] = (RoundStarted, SentContribution, RoundCommitted, AppliedCommit, TrainingProgressed)


@dataclass
class Witness:
    """What one peer has applied, over all lives of its processes."""

    peer: PeerProcess
    num_read: int = 0
    newest: dict[int, int] = field(default_factory=lambda: dict.fromkeys(FRAGMENTS, 0))
    digests: dict[tuple[int, int], str] = field(default_factory=dict)

    def read(self) -> Witness:
        """Take in what is new."""
        events = self.peer.events()
        for event in events[self.num_read :]:
            if isinstance(event.fact, AppliedCommit):
                self._is_at(event.fact.fragment, event.fact.version)
                self.digests[event.fact.fragment, event.fact.version] = event.fact.digest
            elif isinstance(event.fact, AnchorRepair) and event.fact.is_done:
                # It was on a side branch of its own, or had missed something: what led there counts no longer.
                self._forget(event.fact.fragment)
                self.newest[event.fact.fragment] = event.fact.version
            elif isinstance(event.fact, JoinedRun):
                for fragment, version in enumerate(event.fact.versions):
                    self._is_at(fragment, version)
        self.num_read = len(events)
        return self

    def _is_at(self, fragment: int, version: int) -> None:
        if version < self.newest[fragment]:
            self._forget(fragment, version)
        self.newest[fragment] = version

    def _forget(self, fragment: int, above: int = 0) -> None:
        self.digests = {key: value for key, value in self.digests.items() if key[0] != fragment or key[1] <= above}


@dataclass
class Trial:
    """Three peers, who has seen what, and the kills so far."""

    swarm: ProcessSwarm
    witnesses: list[Witness]
    chance: random.Random

    def committed(self) -> dict[tuple[int, int], str]:
        """Digest of every (fragment, version) that at least two peers have applied: what one had alone is no commit."""
        holders = Counter(item for witness in self.witnesses for item in witness.read().digests.items())
        return {key: digest for (key, digest), count in holders.items() if count >= 2}

    def kill(self, kind: str, victim: Witness) -> None:
        """Kill one process at a random moment; return when the peer works with the others again."""
        moment = self.chance.choice(MOMENTS)
        for _ in range(self.chance.randint(1, 5)):
            victim.peer.wait_for(moment, after=victim.peer.mark())
        others = [witness for witness in self.witnesses if witness is not victim]
        before = self.committed()
        marks = {witness.peer.name: witness.peer.mark() for witness in self.witnesses}
        if kind == "trainer":
            self._kill_trainer(victim, others)
        else:
            process = victim.peer.daemon() if kind == "daemon" else victim.peer.network()
            os.kill(process.pid, signal.SIGKILL)
            mark = marks[victim.peer.name]
            victim.peer.wait_for(PartRestarted, lambda fact: fact.part == kind, after=mark, seconds=BACK_SECONDS)
        # The others go on, without waiting for the victim, and then with it.
        one, other = (witness.peer for witness in others)
        one.wait_common_round(other.peer_id, after=marks[one.name], seconds=BACK_SECONDS)
        other.wait_common_round(one.peer_id, after=marks[other.name], seconds=BACK_SECONDS)
        victim.peer.wait_common_round(one.peer_id, after=marks[victim.peer.name], seconds=BACK_SECONDS)
        self._check(before)

    def _kill_trainer(self, victim: Witness, others: Sequence[Witness]) -> None:
        peer = victim.peer
        family = {process.pid for process in peer.family()}
        os.kill(peer.process.pid, signal.SIGKILL)
        peer.process.wait()
        wait_until(lambda: not family & self.swarm.process_ids(), "its network process and its daemon end")
        addresses = [witness.peer.address for witness in others]
        victim.peer = self.swarm.start(peer.name, peers=addresses, port=peer.port)
        # It goes on in the same files, so that what was read stays read.
        victim.peer.wait_joined(after=victim.num_read, seconds=BACK_SECONDS)

    def _check(self, before: dict[tuple[int, int], str]) -> None:
        """All peers come to newer versions than before, with equal digests, and nothing committed is forgotten."""
        newest = {fragment: max(version for index, version in before if index == fragment) for fragment in FRAGMENTS}

        def all_went_on() -> bool:
            for witness in self.witnesses:
                witness.read()
            return all(
                any(
                    len({witness.digests.get((fragment, version), witness.peer.name) for witness in self.witnesses})
                    == 1
                    for version in range(newest[fragment] + 1, self.witnesses[0].newest[fragment] + 1)
                )
                for fragment in FRAGMENTS
            )

        wait_until(all_went_on, "all three hold the same newer anchor of both fragments", BACK_SECONDS)
        # What the newer anchors were made from: somebody applied every commit from there on, and nobody other ones.
        for key in newest.items():
            held = {witness.digests[key] for witness in self.witnesses if key in witness.digests}
            assert held == {before[key]}, f"fragment {key[0]} at version {key[1]}: {self._fates(key[0])}"

    def _fates(self, fragment: int) -> list[tuple[str, int, list[str]]]:
        """For a failed test: where each peer is, and its latest repairs."""
        return [
            (
                witness.peer.name,
                witness.newest[fragment],
                [
                    event.sentence()
                    for event in witness.peer.events()
                    if isinstance(event.fact, AnchorRepair) and event.fact.is_done
                ][-3:],
            )
            for witness in self.witnesses
        ]


def plan(chance: random.Random, num_kills: int) -> list[tuple[str, int]]:
    """(kind, peer) of every kill: each kind equally often, peers in turn within a kind, in random order."""
    kills = [(kind, number % 3) for kind in ("trainer", "network", "daemon") for number in range(num_kills // 3)]
    chance.shuffle(kills)
    return kills


def test_kills_lose_no_committed_version(pytestconfig: pytest.Config) -> None:
    num_kills: int = pytestconfig.getoption("--kills")
    chance = random.Random(SEED)
    with process_swarm() as swarm:
        first = swarm.start("peer-0", has_record=True)
        first.wait_joined()
        peers = [first, *(swarm.start(f"peer-{number}", peers=[first.address]) for number in (1, 2))]
        for peer in peers[1:]:
            peer.wait_joined()
        trial = Trial(swarm, [Witness(peer) for peer in peers], chance)
        everyone: set[PeerId] = {peer.peer_id for peer in peers}
        for peer in peers:
            peer.wait_common_round(*everyone, after=0)
        for count, (kind, number) in enumerate(plan(chance, num_kills), start=1):
            victim = trial.witnesses[number]
            print(
                f"kill {count} of {num_kills}: the {kind} of {victim.peer.name}, versions {victim.newest}", flush=True
            )
            trial.kill(kind, victim)
        assert "Traceback" not in "".join(witness.peer.stderr for witness in trial.witnesses)
        for witness in trial.witnesses:
            witness.peer.process.send_signal(signal.SIGTERM)
            assert witness.peer.wait_end() == 0
            assert isinstance(witness.peer.events()[-1].fact, LeftRun)
        assert (swarm.processes(), swarm.socket_directories()) == ([], [])
