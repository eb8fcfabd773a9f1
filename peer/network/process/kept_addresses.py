"""Where members are, kept on the disk for the next start."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dht.p2pd.host import P2pdHost
from peer.config.peer_config import PeerConfig, read_cached_peers, write_cached_peers

log = logging.getLogger(__name__)


@dataclass
class KeptAddresses:
    """The addresses of this peer's sessions."""

    config: PeerConfig
    host: P2pdHost
    _is_failing: bool = False

    async def keep(self) -> None:
        """Keep where members are for the next start; a disk that takes nothing costs one sentence."""
        connected, path = await self.host.connected_addresses(), self.config.cached_peers_path
        found = [address for peer_id in sorted(connected) for address in connected[peer_id]]
        try:
            # A member may not have announced its addresses yet; what this peer came by leads there, too.
            write_cached_peers(path, [*found, *read_cached_peers(path), *self.config.peers])
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                log.warning(
                    "%s cannot be written (%s): where members are is not kept for the next start, and everything else "
                    "goes on; free some space, or check the folder",
                    path,
                    error.strerror or error,
                )
            self._is_failing = True
