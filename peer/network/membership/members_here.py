"""Finds addresses of members, again before each dial, because a returning peer may have a different port.

A peer writes its addresses into its own data folder. There a process that waits or has lost all members finds the peer
again, and so does a second command.
"""

from __future__ import annotations

from pathlib import Path

from peer.config.peer_config import ADDRESSES_NAME, PeerConfig, read_cached_peers
from peer.data_folder.run_folders import folders_in_use


def addresses_now(config: PeerConfig) -> list[str]:
    """Return the given addresses, those of peers running on this machine now, and those of earlier sessions."""
    here = addresses_here(config.run_id, config.data_dir)
    return list(dict.fromkeys([*config.peers, *here, *read_cached_peers(config.cached_peers_path)]))


def addresses_here(run_id: str, besides: Path | None = None) -> list[str]:
    """Return addresses of peers of the run that run on this machine now, in folders other than `besides`."""
    return [one for folder in folders_in_use(run_id, besides) for one in read_cached_peers(folder / ADDRESSES_NAME)]
