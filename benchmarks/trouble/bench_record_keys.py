"""Three real peers beside a host that publishes right records of many keys: rounds, validation loss, lone commits.

    python -m benchmarks.trouble.bench_record_keys [--keys 100] [--senders 0] [--seconds 60]

Three `peer join` with network process and daemon each, on loopback, mode carry, combine centered_clip. First nothing
else happens for `--seconds`; then a process with one daemon publishes a record for each of `--keys` keys every 40 s and
answers nobody. `--senders` of the keys have a daemon each as well, and send a commit of themselves alone, with a step
back, for each new version. Measured is from when all of them are up. They stand for another machine, so their priority
is lower than that of the honest peers; a busy machine costs these more than the attack does nevertheless. So beside the
rounds stand the inner steps that the trainers took.

Printed are rounds with honest work in each window of 15 s, before and beside the records; the validation loss at the
end of both; commits without an honest contributor that honest peers applied; and all rounds and inner steps.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# The harness that starts peers is the tests'.
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from averaging.fragment.shard_store import payload_digest
from averaging.lanes.links import LinkPorts, Links
from averaging.rounds.round_facts import RoundCommitted
from averaging.signing.round_signatures import Notary, Scope
from averaging.transfer.client import fetch_digest
from averaging.wire import frames
from averaging.wire.messages import DIGEST_BYTES, Result, RosterEntry
from dht.ground.errors import PeerFault
from dht.identity.keys import Identity, verify
from dht.records.peer_record import PeerRecord, decode_peer_record, encode_peer_record
from peer.config.averaging_rules import codec_of, limits_of
from peer.config.model_shapes import seed_sizes
from peer.events.peer_events import Evaluated
from tests.kit.processes.hostile_member import HostileMember, hostile_member
from tests.kit.processes.process_swarm import TINY_RUN, PeerProcess, ProcessSwarm, process_swarm
from tests.simulator.adversaries.claims import lone_commit

PUBLISH_SECONDS = 40.0
WINDOW_SECONDS = 15.0
LIFE_SECONDS = 90.0
RUN = TINY_RUN.replace("[averaging]", '[averaging]\ncombine = "centered_clip"').replace("= 2.0", "= 10.0")
STEP_BACK = 1e-3
ATTACKERS_NICE = 5
LOOK_SECONDS = 0.2


async def publish(member: HostileMember, keys: Sequence[Identity]) -> None:
    """A right record for each key, again and again; copied from one of an honest trainer."""
    run_id, sequence = member.swarm.run_id, 0
    while True:
        sequence += 1
        found = await member.store.fetch_peers(run_id)
        records = []
        for data in found:
            with suppress(PeerFault):  # one that has just expired
                records.append(decode_peer_record(data, run_id=run_id, now=time.time()))
        own = {identity.peer_id for identity in keys}
        pattern = next((one for one in records if one.is_training and one.versions and one.peer_id not in own), None)
        for key in keys if pattern is not None else ():
            await _publish_one(member, key, pattern, sequence)
        await asyncio.sleep(PUBLISH_SECONDS if pattern is not None else 1.0)


async def _publish_one(member: HostileMember, key: Identity, pattern: PeerRecord, sequence: int) -> None:
    expires_at = time.time() + LIFE_SECONDS
    record = replace(
        pattern, peer_id=key.peer_id, session=1, sequence=sequence, expires_at=expires_at, newest_round=None
    )
    await member.store.publish_peer(member.swarm.run_id, key.peer_id, encode_peer_record(record, key), expires_at)


async def commit_alone(member: HostileMember, victims: Sequence[PeerProcess]) -> None:
    """Close each version alone, under the member's key."""
    manifest = member.swarm.run.manifest
    codec, sizes, identity = codec_of(manifest), seed_sizes(manifest), member.identity
    ports = LinkPorts(lambda *_: None, lambda *_: None, lambda *_: None)
    links = Links(member.host, member.handshake_policy, limits_of(sizes, codec), ports)
    notary = Notary(Scope(member.swarm.run_id, manifest.hash), identity.sign, verify)
    versions = [victims[0].versions().get(index, 0) for index in range(len(sizes))]
    while True:
        for index, size in enumerate(sizes):
            digest = b""
            with suppress(PeerFault, TimeoutError):
                donor = victims[index % len(victims)].peer_id
                while following := await fetch_digest(
                    member.host, member.handshake_policy, donor, index, versions[index] + bool(digest)
                ):
                    versions[index] += bool(digest)
                    digest = following
            if not digest:
                versions[index] += 1
                continue
            payload = b"".join(bytes(part) for part in codec.encode(np.full(size, STEP_BACK, np.float32)).pack())
            fragment: Any = SimpleNamespace(index=index, machine=SimpleNamespace(num_values=size))
            entry = RosterEntry(identity.peer_id, 640, 10, versions[index], int(1000 * time.time()))
            commit = lone_commit(
                fragment, versions[index], digest[:DIGEST_BYTES], entry, payload_digest(payload), signer=notary
            )
            for victim in victims:
                mean = frames.encode(Result(index, versions[index], 0, 0, size))
                links.post(victim.peer_id, [mean, payload], "data")
                links.post(victim.peer_id, [frames.encode(commit)])
        await asyncio.sleep(LOOK_SECONDS)


async def _make_way(stack: AsyncExitStack, coming: AbstractAsyncContextManager[HostileMember]) -> HostileMember:
    """Enter a member, and lower its daemon's priority; one of low priority would not come up on a busy machine."""
    member = await stack.enter_async_context(coming)
    daemon = member.host.daemon._daemon
    if daemon is not None:
        os.setpriority(os.PRIO_PROCESS, daemon.process_id, ATTACKERS_NICE)
    return member


async def attack(
    swarm: ProcessSwarm, victims: Sequence[PeerProcess], options: argparse.Namespace, is_up: asyncio.Event
) -> None:
    """Publish records, and send lone commits under some of the keys, until cancelled."""
    keys = [Identity.generate() for _ in range(options.keys)]
    addresses = [victim.address for victim in victims]
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        tasks.create_task(publish(await _make_way(stack, hostile_member(swarm, *addresses)), keys))
        for key in keys[: options.senders]:
            sender = await _make_way(stack, hostile_member(swarm, *addresses, identity=key))
            tasks.create_task(commit_alone(sender, victims))
        os.setpriority(os.PRIO_PROCESS, 0, ATTACKERS_NICE)
        is_up.set()


def rounds_in(peer: PeerProcess, first: int, honest: set[str]) -> tuple[int, int]:
    """(rounds with honest work, commits without), as one peer saw them behind its first events."""
    facts = [event.fact for event in peer.events()[first:] if isinstance(event.fact, RoundCommitted)]
    lone = sum(not honest & set(fact.contributors) for fact in facts)
    return len(facts) - lone, lone


async def measure(peers: Sequence[PeerProcess], seconds: float) -> None:
    """Print one line for each window, and one for all."""
    honest = {str(peer.peer_id) for peer in peers}
    firsts, steps = [peer.mark() for peer in peers], [peer.inner_steps() for peer in peers]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        marks = [peer.mark() for peer in peers]
        await asyncio.sleep(WINDOW_SECONDS)
        seen = [rounds_in(peer, mark, honest) for peer, mark in zip(peers, marks, strict=True)]
        losses = [
            [event.fact.validation_loss for event in peer.events() if isinstance(event.fact, Evaluated)][-1:]
            for peer in peers
        ]
        print(
            f"  rounds {[rounds for rounds, _ in seen]}, lone {[lone for _, lone in seen]}, loss {losses}", flush=True
        )
    rounds = sum(rounds_in(peer, first, honest)[0] for peer, first in zip(peers, firsts, strict=True))
    num_steps = sum(peer.inner_steps() - before for peer, before in zip(peers, steps, strict=True))
    print(f"  in all {rounds} rounds, {num_steps} inner steps", flush=True)


async def compare(swarm: ProcessSwarm, options: argparse.Namespace) -> None:
    """Three peers alone, then beside the attack."""
    first = swarm.start("peer0", has_record=True)
    first.wait_joined()
    peers = [first, *(swarm.start(f"peer{number}", peers=[first.address]) for number in (1, 2))]
    for peer in peers:
        peer.wait_joined()
    await asyncio.sleep(WINDOW_SECONDS)
    print("without records:", flush=True)
    await measure(peers, options.seconds)
    is_up = asyncio.Event()
    attacking = asyncio.create_task(attack(swarm, peers, options, is_up))
    await asyncio.wait([attacking, asyncio.create_task(is_up.wait())], return_when=asyncio.FIRST_COMPLETED)
    print(f"with records of {options.keys} keys, {options.senders} of which send lone commits:", flush=True)
    measuring = asyncio.create_task(measure(peers, options.seconds))
    await asyncio.wait([attacking, measuring], return_when=asyncio.FIRST_COMPLETED)
    if attacking.done():
        attacking.result()
    attacking.cancel()
    await asyncio.gather(attacking, measuring, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--senders", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with process_swarm(RUN) as swarm:
        asyncio.run(compare(swarm, options))


if __name__ == "__main__":
    main()
