"""The files of a run before its node begins: checked or fetched, and then given to others."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from averaging.rounds.round_facts import Fact
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.identity.multiaddr import parse_peer_multiaddr
from dht.kademlia.dht_store import HivemindStore
from dht.p2pd.host import P2pdHost
from dht.records.peer_record import decode_peer_record
from peer.config.manifest import RunManifest
from peer.config.peer_config import PeerConfig
from peer.events.anchor_events import Fetched
from peer.events.peer_events import SwarmContact
from peer.files.checked_folder import forget_others
from peer.files.fetching import FileFetcher
from peer.files.serving import ServedFiles, read_served
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.network.node.catch_up_meter import CatchUpMeter


async def have_files(
    config: PeerConfig,
    manifest: RunManifest,
    host: P2pdHost,
    store: HivemindStore,
    handshake_policy: RunHandshakePolicy,
    report: Callable[[Fact], None],
) -> ServedFiles:
    """Every file of the run, in the data folder, and what is needed to give them to others.

    Raises:
        LocalFault: one of them cannot be had, or cannot be written.
    """
    if not manifest.files:
        return ServedFiles({})
    began = time.monotonic()
    meter = CatchUpMeter(time.monotonic, report)
    meter.arrived(0, 1)

    async def donors() -> Sequence[PeerId]:
        # A seed that waits for the first trainer has no record yet, and may be the only one that has the files.
        given = [parse_peer_multiaddr(address)[0] for address in config.peers]
        found = dict.fromkeys([*given, *await _recorded(store, config.run_id), *await host.connected_addresses()])
        return [name for name in found if name != host.peer_id]

    fetcher = FileFetcher(
        host,
        handshake_policy,
        config.data_dir,
        manifest,
        donors,
        config.join_timeout_seconds,
        asyncio.to_thread,
        on_bytes=meter.arrived,
        on_waiting=lambda reason, seconds: report(SwarmContact("waiting", seconds, reason=reason)),
    )
    fetched = await fetcher.run()
    if fetched.names:
        report(Fetched(fetched.num_bytes, time.monotonic() - began, fetched.donors, names=fetched.names))
    await asyncio.to_thread(forget_others, config.data_dir, manifest)
    return ServedFiles(await asyncio.to_thread(read_served, config.data_dir, manifest), asyncio.to_thread)


async def _recorded(store: HivemindStore, run_id: str) -> list[PeerId]:
    """Members with a live record; of very many a sample, which is enough."""
    names, now = [], time.time()
    for record in await store.fetch_peers(run_id):
        with contextlib.suppress(PeerFault):
            names.append(decode_peer_record(record, run_id=run_id, now=now).peer_id)
    return names
