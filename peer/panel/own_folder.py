"""Which data folder a peer takes: its own, or a further one when another peer of the run holds that on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dht.errors import LocalFault
from peer.config.peer_config import ADDRESSES_NAME, IDENTITY_NAME, PeerConfig, make_data_dir, read_cached_peers
from peer.folder_lock import FolderInUse, FolderLock
from peer.fresh_folder import FreshFolder

MOST_FOLDERS = 16
"""Peers of one run on one machine that get a folder without being told: more than any machine trains well."""


@dataclass(frozen=True, slots=True)
class HeldFolder:
    """A locked data folder; `sentence` is for the person, when it is not the folder that they expect."""

    lock: FolderLock
    fresh: FreshFolder
    sentence: str | None = None

    def give_up(self) -> None:
        """Let the folder go and leave it as it was: nothing came of this start, and nobody saw its key."""
        self.lock.close()
        self.fresh.take_back()


def hold_folder(config: PeerConfig, what: str, files: Sequence[str] = ()) -> tuple[PeerConfig, HeldFolder]:
    """Lock the data folder of `config`, or the next one when a peer of the run holds that, as in a second terminal.

    Only a default folder gives way, with the default key: if you name a folder or a key, you get that or a sentence. So
    a key never runs twice. The second peer also dials the first one, whose addresses are in the first folder.

    Args:
        what: runs here, e.g. "peer join".
        files: names of what a start may write there beside key, log and addresses.

    Returns:
        the choices with the folder that was taken, and the folder.

    Raises:
        LocalFault: the folder cannot be used, or another process holds what was named.
    """
    chosen, neighbours = config, list[str]()
    first_fault: FolderInUse | None = None
    for number in range(2, MOST_FOLDERS + 2):
        fresh = _fresh(chosen, files)
        make_data_dir(chosen)
        try:
            lock = FolderLock(chosen.data_dir, what)
        except FolderInUse as error:
            if {"data_dir", "identity"} & config.model_fields_set:
                raise
            first_fault = first_fault or error
            neighbours += read_cached_peers(chosen.data_dir / ADDRESSES_NAME)
            folder = config.data_dir.with_name(f"{config.data_dir.name}-{number}")
            peers = tuple(dict.fromkeys([*config.peers, *neighbours]))
            chosen = config.model_copy(update={"data_dir": folder, "identity": folder / IDENTITY_NAME, "peers": peers})
            continue
        if first_fault is None:
            return chosen, HeldFolder(lock, fresh)
        sentence = (
            f"another peer of the run has the usual folder on this machine: {first_fault.holder}. This one has a key "
            f"and a folder of its own: {chosen.data_dir}"
        )
        return chosen, HeldFolder(lock, fresh, sentence)
    raise LocalFault(
        f"{MOST_FOLDERS} peers of {config.run_id} run on this machine already; expected fewer; give --data-dir to one "
        "more"
    )


def _fresh(config: PeerConfig, files: Sequence[str]) -> FreshFolder:
    written = (config.identity, config.event_log_path, config.cached_peers_path)
    return FreshFolder(config.data_dir, (*written, *(config.data_dir / name for name in files)))
