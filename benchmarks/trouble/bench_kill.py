"""How long the survivors of a death in mid-round take to their next common commit.

    python -m benchmarks.trouble.bench_kill [--roles leader,member] [--how kill,silence] [--learn 6] [--json]
    python -m benchmarks.trouble.bench_kill --simulated [--values 10000000] [--mbit 100]

Without `--simulated`: four real `peer join` processes with their libp2p daemons on loopback train a model of 10 M
parameters. When the swarm has had some rounds, one peer dies right after it has seen a round start. `kill`: SIGKILL to
all its processes, so that the others' streams break. `silence`: SIGSTOP, so that its streams stay open and nothing
comes, as after a power cut. The time runs from the death to the last survivor's commit of that version, by the times in
the event logs. Loopback limits no rate; the processes share this machine's cores.

With it: the same, and members that only send, over a simulated network of the given rate, in virtual time. Frames and
tensors are real, while computing takes no time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

# The harness that starts peers is the tests'.
sys.path.insert(0, str(Path(__file__).parents[2]))

from averaging.rounds.round_facts import AppliedCommit, MembersAwaited, RoundCommitted, RoundStarted
from peer.events.peer_events import JoinedRun
from tests.kit.processes.process_swarm import PeerProcess, ProcessSwarm, process_swarm

RUN = """
description = "10 M parameters"
seed = 1
[model]
num_layers = 8
d_model = 328
num_heads = 4
context = 16
[data]
source = "text:"
[training]
batch_size = 1
warmup_steps = 5
[averaging]
sync_every = 24
num_fragments = 4
[network]
announce_seconds = 10.0
"""
NUM_PEERS = 4
LOOK_SECONDS = 0.002
JOIN_SECONDS = 300.0
ROUND_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One death.

    Attributes:
        seconds: from the death to the last survivor's commit of the version that was under way.
        expired: deadlines that passed meanwhile, as the survivors say it.
    """

    role: str
    how: str
    num_parameters: int
    seconds: float
    digests_equal: bool
    num_contributors: int
    num_void_shards: int
    expired: tuple[str, ...]


def bench(role: str, how: str, num_learning_rounds: int) -> Trial:
    """Start a swarm, let it learn, kill one peer in mid-round, and wait for the others."""
    with process_swarm(RUN) as swarm:
        peers = start_peers(swarm)
        joined = [peer.wait_for(JoinedRun, seconds=JOIN_SECONDS) for peer in peers]
        wait_for_rounds(peers, num_learning_rounds)
        victim, started, died_at = kill_in_round(peers, role, how)
        survivors = [peer for peer in peers if peer is not victim]
        commits = [wait_commit(peer, started) for peer in survivors]
        if max(at for at, _, _ in commits) <= died_at:
            raise SystemExit("the round was over before the peer died; expected a death in mid-round; run it again")
        expired = [
            event.sentence()
            for peer in survivors
            for event in peer.events()
            if isinstance(event.fact, MembersAwaited)
            and event.fact.awaited != "quorum"
            and event.at > died_at
            and event.fact.fragment == started.fragment
            if event.fact.version == started.version
        ]
        return Trial(
            role,
            how,
            joined[0].num_parameters,
            max(at for at, _, _ in commits) - died_at,
            len({digest for _, _, digest in commits}) == 1,
            len(commits[0][1].contributors),
            commits[0][1].num_void_shards,
            tuple(expired),
        )


def start_peers(swarm: ProcessSwarm) -> list[PeerProcess]:
    """The first makes the run findable, the others join through it."""
    first = swarm.start("peer0", has_record=True)
    first.wait_for(JoinedRun, seconds=JOIN_SECONDS)
    others = [swarm.start(f"peer{number}", peers=[first.address]) for number in range(1, NUM_PEERS)]
    return [first, *others]


def wait_for_rounds(peers: list[PeerProcess], num_rounds: int) -> None:
    """Until everybody has had so many rounds of all four in each fragment: deadlines are learned from them."""
    end = time.monotonic() + JOIN_SECONDS + num_rounds * ROUND_SECONDS / 4
    while time.monotonic() < end:
        counts: list[int] = []
        for peer in peers:
            full = [
                e.fact.fragment
                for e in peer.events()
                if isinstance(e.fact, RoundStarted) and e.fact.num_contributors == NUM_PEERS
            ]
            counts.append(min(full.count(fragment) for fragment in range(4)))
        if min(counts) >= num_rounds:
            return
        time.sleep(0.2)
    raise SystemExit(f"the swarm had too few common rounds in time: {counts}")


def kill_in_round(peers: list[PeerProcess], role: str, how: str) -> tuple[PeerProcess, RoundStarted, float]:
    """Wait for a round of all peers to start, and end one of its members at once."""
    marks = {peer.name: peer.mark() for peer in peers}
    families = {peer.name: [process.pid for process in peer.family()] for peer in peers}
    by_id = {peer.peer_id: peer for peer in peers}
    end = time.monotonic() + ROUND_SECONDS
    while time.monotonic() < end:
        for peer in peers:
            for event in peer.events()[marks[peer.name] :]:
                marks[peer.name] += 1
                if isinstance(event.fact, RoundStarted) and event.fact.num_contributors == NUM_PEERS:
                    others = [other for other in peers if other.peer_id != event.fact.leader]
                    victim = by_id[event.fact.leader] if role == "leader" else others[0]
                    died_at = time.time()
                    for pid in families[victim.name]:
                        os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
                    return victim, event.fact, died_at
        time.sleep(LOOK_SECONDS)
    raise SystemExit("no round of all four peers started in time")


def wait_commit(peer: PeerProcess, started: RoundStarted) -> tuple[float, RoundCommitted, str]:
    """When the survivor committed that version, what, and the digest of its anchor afterwards."""
    commit = peer.wait_for(
        RoundCommitted,
        lambda event: (event.fragment, event.version) == (started.fragment, started.version),
        seconds=ROUND_SECONDS,
    )
    applied = peer.wait_for(
        AppliedCommit, lambda event: (event.fragment, event.version) == (started.fragment, started.version + 1)
    )
    at = next(event.at for event in peer.events() if event.fact is commit)
    return at, commit, applied.digest


def simulated(num_values: int, bits_per_second: float) -> list[Trial]:
    """The deaths of `tests/averaging/exchange/test_survivors.py`, with their times."""
    from tests.averaging.exchange import test_survivors
    from tests.kit.rounds.exchange_swarm import scenario

    trials: list[Trial] = []
    test_survivors.BITS_PER_SECOND = bits_per_second
    test_survivors.NUM_VALUES = num_values
    for choose in test_survivors.ROLES:
        for how in ("crash", "stall"):

            async def play(choose=choose, how=how):  # type: ignore[no-untyped-def]
                swarm, survivors, version, seconds = await test_survivors.one_dies(choose, how, num_values)
                (commit,) = {one.commit for peer in survivors for one in peer.closed() if one.commit.version == version}
                included = {index for shard in commit.shards for index in shard.included}
                trials.append(
                    Trial(
                        choose.__name__,
                        how,
                        num_values,
                        seconds,
                        len({peer.fragments[0].state.digest for peer in survivors}) == 1,
                        len(included),
                        sum(not shard.digest for shard in commit.shards),
                        (),
                    )
                )
                return swarm

            scenario(play)
    return trials


def main() -> None:
    """Parse the command line and print one line per death."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--roles", default="leader,member")
    parser.add_argument("--how", default="kill,silence")
    parser.add_argument("--learn", type=int, default=6, help="rounds of all peers before the death")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--values", type=int, default=10_000_000)
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.simulated:
        trials = simulated(options.values, 1e6 * options.mbit)
    else:
        trials = [
            bench(role, how, options.learn) for role in options.roles.split(",") for how in options.how.split(",")
        ]
    for trial in trials:
        if options.json:
            print(json.dumps(asdict(trial)))
            continue
        print(
            f"{trial.role:22} {trial.how:8} {trial.num_parameters / 1e6:5.1f} M parameters  {trial.seconds:6.2f} s  "
            f"{trial.num_contributors} in the commit, {trial.num_void_shards} shards void, "
            f"digests {'equal' if trial.digests_equal else 'DIFFERENT'}"
        )
        for sentence in trial.expired:
            print(f"    {sentence}")


if __name__ == "__main__":
    main()
