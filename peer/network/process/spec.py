"""What a network side is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from dht.streams.pacing import RateLimits
from peer.config.peer_config import PeerConfig


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """What the network side needs to know; plain values, so that it can be sent to another process."""

    run_id: str
    role: str
    peers: tuple[str, ...]
    data_dir: str
    identity: str
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    join_timeout_seconds: float
    name: str
    checkpoint_minutes: float
    checkpoints_kept: int
    upload_limit_mbit: float | None
    download_limit_mbit: float | None
    port_range: tuple[int, int] | None = None
    """First port, and the one behind the last."""
    map_ports: bool = False
    uses_relays: bool = True
    relays_for_others: bool | None = None
    """None: seeds do, trainers do not."""
    max_streams_per_peer: int = 64
    max_memory_mb_per_peer: int | None = None
    serve_limit_mbit: float | None = None
    max_transfers: int = 4
    contributor_key: str = ""
    """Path of the contributor's key file; empty: the machine stands for itself."""
    site: str = ""

    @property
    def limits(self) -> RateLimits:
        """What the volunteer lets the line carry."""
        limits = self.upload_limit_mbit, self.download_limit_mbit
        return RateLimits(*(None if limit is None else 1e6 * limit for limit in limits))


def network_spec(config: PeerConfig, role: str) -> NetworkSpec:
    """What the network side needs of a volunteer's choices."""
    return NetworkSpec(
        run_id=config.run_id,
        role=role,
        peers=config.peers,
        data_dir=str(config.data_dir),
        identity=str(config.identity),
        listen=config.listen_addresses,
        announce=config.announce,
        join_timeout_seconds=config.join_timeout_seconds,
        name=config.name,
        checkpoint_minutes=config.checkpoint_minutes,
        checkpoints_kept=config.checkpoints_kept,
        upload_limit_mbit=config.upload_limit_mbit,
        download_limit_mbit=config.download_limit_mbit,
        port_range=None if config.ports is None else (config.ports.start, config.ports.stop),
        map_ports=config.map_ports,
        uses_relays=config.relay,
        relays_for_others=config.relay_for_others,
        max_streams_per_peer=config.max_streams_per_peer,
        max_memory_mb_per_peer=config.max_memory_mb_per_peer,
        serve_limit_mbit=config.serve_limit_mbit,
        max_transfers=config.max_transfers,
        contributor_key="" if config.contributor_key is None else str(config.contributor_key.absolute()),
        site=config.site,
    )
