"""One member of `nat_lab --paths`: host, probes and path manager of a real peer, without DHT and training.

Reads JSON from its first argument, prints each event as a line and at last what it could send to the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from typing import Any

from averaging.lanes.handshake import OPEN_SECONDS
from dht.admission.handshake_frames import AccessRule
from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import PeerId, Stream
from dht.identity.keys import Identity
from dht.p2pd.daemon import DaemonOptions
from dht.p2pd.fresh_dial import dial_freshly
from dht.p2pd.host import P2pdHost
from dht.p2pd.own_relay_trial import check_relay
from dht.records.peer_record import PeerRecord
from peer.events.event_log import to_json
from peer.events.peer_events import Event
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.network.reachability.paths import Paths
from peer.network.reachability.probe_client import DialBack, probing
from peer.network.reachability.probe_server import ProbeServer
from tests.kit.records import make_record

PUSH_PROTOCOL = "/murmuration/natlab/1"
PIECE_BYTES = 64 * 1024
PUSH_BYTES = 512 * 1024
"""Four times what a limited relay lets pass."""
PUSH_SECONDS = 20.0
DIAL_SECONDS = 10.0
REDIAL_SECONDS = 5.0


async def _serve(stream: Stream) -> None:
    num_bytes = 0
    while num_bytes < PUSH_BYTES:
        num_bytes += len(await stream.receive(PIECE_BYTES))
    await stream.send(b"all")
    with contextlib.suppress(PeerUnreachable):
        await stream.receive(1)


async def _push(host: P2pdHost, to: PeerId) -> bool:
    try:
        async with asyncio.timeout(PUSH_SECONDS):
            stream = await host.open_stream(to, PUSH_PROTOCOL, OPEN_SECONDS)
            try:
                for _ in range(PUSH_BYTES // PIECE_BYTES):
                    await stream.send(bytes(PIECE_BYTES))
                return await stream.receive(3) == b"all"
            finally:
                await stream.close()
    except (PeerFault, TimeoutError):
        return False


async def _keep_company(host: P2pdHost, seeds: list[str], homes: list[PeerId]) -> None:
    """What DHT and rounds do in a real peer: stay connected to seeds, talk to the other homes."""
    while True:
        for address in seeds:
            with contextlib.suppress(PeerFault):
                await host.connect(address, DIAL_SECONDS)
        for home in homes:
            with contextlib.suppress(PeerFault):
                await (await host.open_stream(home, PUSH_PROTOCOL, DIAL_SECONDS)).close()
        await asyncio.sleep(REDIAL_SECONDS)


async def _take_part(told: dict[str, Any]) -> None:
    identity = Identity.load(told["key"])
    rule = AccessRule(told["run_id"], bytes(32), "lab")
    handshake_policy = RunHandshakePolicy(rule, identity.peer_id, "seed" if told["is_seed"] else "trainer")
    members = [_record(told["run_id"], **member) for member in told["members"]]
    others = [PeerId(peer_id) for peer_id in told["homes"]]
    async with P2pdHost(identity, told["listen"], options=DaemonOptions(relays_for_others=told["is_seed"])) as host:
        host.handle(PUSH_PROTOCOL, _serve)
        ProbeServer(host, handshake_policy, dial_freshly, wall_clock=time.time, clock=time.monotonic)

        async def dial_back(member: PeerId, addresses: list[str]) -> DialBack:
            async with probing(host, handshake_policy, member, time.monotonic, time.time) as probe:
                return await probe.dial_back(addresses)

        paths = Paths(
            host,
            lambda: members,
            dial_back,
            check_relay,
            lambda is_dialable, can_reduce: None,
            lambda fact: print(to_json(Event(time.time(), host.peer_id, fact)), flush=True),
            time.monotonic,
            random.Random(),
            uses_relays=told["uses_relays"],
            relays=told["is_seed"],
        )
        working = [asyncio.create_task(paths.run()), asyncio.create_task(_keep_company(host, told["seeds"], others))]
        await asyncio.sleep(told["seconds"])
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        passed = {peer_id: await _push(host, peer_id) for peer_id in others}
        print(json.dumps({"passed": passed}), flush=True)
        # The others may still be pushing.
        await asyncio.sleep(PUSH_SECONDS / 2)


def _record(run_id: str, peer_id: str, role: str, reachable: bool) -> PeerRecord:
    return make_record(
        PeerId(peer_id),
        run_id=run_id,
        expires_at=time.time() + 3600,
        state="serving" if role == "seed" else "training",
        role="seed" if role == "seed" else "trainer",
        device="lab",
        software="lab",
        reachable=reachable,
        started_at=time.time(),
    )


if __name__ == "__main__":
    asyncio.run(_take_part(json.loads(sys.argv[1])))
