"""Checks or fetches the files of a run before its node begins, then serves them; also stores addresses on the disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from averaging.rounds.round_facts import Fact
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.identity.multiaddr import parse_peer_multiaddr
from dht.kademlia.dht_store import HivemindStore
from dht.p2pd.host import P2pdHost
from dht.records.peer_record import decode_peer_record
from peer.config.manifest import RunManifest
from peer.config.peer_config import PeerConfig, read_cached_peers, write_cached_peers
from peer.events.anchor_events import Fetched
from peer.events.peer_events import SwarmContact
from peer.files.checked_folder import forget_others
from peer.files.fetching import FileFetcher
from peer.files.serving import ServedFiles, read_served
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.network.node.reporter import CatchUpMeter

log = logging.getLogger(__name__)


async def have_files(
    config: PeerConfig,
    manifest: RunManifest,
    host: P2pdHost,
    store: HivemindStore,
    handshake_policy: RunHandshakePolicy,
    report: Callable[[Fact], None],
) -> ServedFiles:
    """Provide every file of the run in the data folder; return the files in the form in which they are served.

    Raises:
        LocalFault: a file cannot be fetched, or cannot be written.
    """
    if not manifest.files:
        return ServedFiles({})
    began = time.monotonic()
    meter = CatchUpMeter(time.monotonic, report)
    meter.arrived(0, 1)

    async def donors() -> Sequence[PeerId]:
        # A seed that waits for the first trainer has no record yet, but may be the only peer with the files.
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
    """Return members with a live record; in a very large swarm a sample."""
    names, now = [], time.time()
    for record in await store.fetch_peers(run_id):
        with contextlib.suppress(PeerFault):
            names.append(decode_peer_record(record, run_id=run_id, now=now).peer_id)
    return names


@dataclass
class KeptAddresses:
    """Stores addresses of members between this peer's sessions."""

    config: PeerConfig
    host: P2pdHost
    _is_failing: bool = False

    async def keep(self) -> None:
        """Store members' addresses for the next start; log one sentence if the disk is not writable."""
        connected, path = await self.host.connected_addresses(), self.config.cached_peers_path
        found = [address for peer_id in sorted(connected) for address in connected[peer_id]]
        try:
            # A member may not have announced its addresses yet; the addresses that this peer joined by also lead to it.
            write_cached_peers(path, [*found, *read_cached_peers(path), *self.config.peers])
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                log.warning(
                    "%s cannot be written (%s): the addresses of members are not stored for the next start; all else "
                    "continues; free some space, or check the folder",
                    path,
                    error.strerror or error,
                )
            self._is_failing = True
