"""What signatures add to a round: at a reducer, at the leader, and at a member that checks a commit.

    python -m benchmarks.bench_signatures [--members 2 8 64 256]

Processor time, the shortest of several runs, so that what else the machine does does not count. Nothing of it is
on the way of an inner step; members check the reducers' signatures in a thread while the results arrive.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

from averaging.signing.round_signatures import Notary, Scope
from averaging.wire import frames
from averaging.wire.messages import DIGEST_BYTES, Commit, Plan, RosterEntry, ShardPlan, ShardResult
from dht.identity.keys import Identity, verify

NUM_RUNS = 7


def seconds_of(work: Callable[[], object]) -> float:
    """Processor seconds of the shortest of `NUM_RUNS` runs."""
    found = []
    for _ in range(NUM_RUNS):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def measure(num_members: int) -> str:
    """One line: a round of so many members, each of which reduces one shard."""
    people = sorted((Identity.generate() for _ in range(num_members)), key=lambda one: one.peer_id)
    scope = Scope("bench.abcdefghij234567abcd", bytes(32))
    notaries = [Notary(scope, one.sign, verify) for one in people]
    digest = bytes(DIGEST_BYTES)
    roster = tuple(RosterEntry(one.peer_id, 1 << 20, 100, 1000, 1 << 40) for one in people)
    plans = tuple(ShardPlan(100 * number, 100 * number + 100, number) for number in range(num_members))
    plan = Plan(0, 1000, 0, digest, roster, plans, 10.0, 20.0)
    everybody = tuple(range(num_members))
    leader = people[0].peer_id
    bare = [ShardResult(part.start, part.end, part.reducer, digest, everybody) for part in plans]
    results = tuple(replace(one, signature=notaries[one.reducer].sign_result(plan, leader, one)) for one in bare)
    unsigned = Commit(0, 1000, 0, leader, digest, roster, results, digest)
    commit = notaries[0].sign_commit(unsigned)
    last = results[-1]
    plain = replace(commit, signature=b"", shards=tuple(replace(one, signature=b"") for one in results))
    reducer = seconds_of(lambda: notaries[-1].sign_result(plan, leader, bare[-1]))
    heard = seconds_of(lambda: notaries[0].is_makers(people[-1].peer_id, plan, leader, last))
    closing = seconds_of(lambda: notaries[0].sign_commit(unsigned))
    first = seconds_of(lambda: notaries[-1].is_leaders(commit))
    whole = seconds_of(lambda: notaries[-1].objection(commit))
    more_bytes = len(frames.encode(commit)) - len(frames.encode(plain))
    return (
        f"{num_members:7d}  {1e3 * reducer:8.2f}  {1e3 * heard:8.2f}  {1e3 * closing:8.2f}  {1e3 * first:8.2f}  "
        f"{1e3 * whole:9.2f}  {len(frames.encode(commit)):12,d}  {more_bytes:10,d}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[2, 8, 64, 256])
    options = parser.parse_args()
    print("milliseconds; one shard per member")
    print("members  reducer:   leader:  leader:    member:    member:   commit,      of which")
    print("         sign mean  check   sign       leader's   all        bytes        signatures")
    for num_members in options.members:
        print(measure(num_members))


if __name__ == "__main__":
    main()
