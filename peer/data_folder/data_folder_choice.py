"""Chooses a peer's data folder: its last folder, or an additional folder beside those of the run's other peers."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dht.ground.errors import LocalFault, UsageFault
from peer.config.peer_config import (
    ADDRESSES_NAME,
    IDENTITY_NAME,
    RUN_RECORD_NAME,
    PeerConfig,
    make_data_dir,
    other_run_in,
    read_cached_peers,
)
from peer.data_folder.folder_lock import LOCK_NAME, FolderInUse, FolderLock, last_use_of, told_holder_of
from peer.data_folder.run_folders import SEED, stopped_seed
from peer.user_folders import OWNER_KEY_NAME

MOST_FOLDERS = 16
"""Maximum number of peers of one run on one machine with default folders; no machine trains well with more."""

_TRAINERS = ("peer join", "a training loop")
_FETCHED = (ADDRESSES_NAME, RUN_RECORD_NAME, "files")
"""Files that the network process writes into a folder before its peer trains, except checkpoints."""


class FreshFolder:
    """Files that a starting peer or a new run writes before another peer has seen its key; deleted after a failure.

    Create it before the folder, because it notes what is missing.

    Args:
        files: files and folders that may be written, in the folder or elsewhere.
    """

    def __init__(self, folder: Path, files: Iterable[Path]) -> None:
        self._folder = folder
        self._files = [path for path in (*files, folder / LOCK_NAME) if not os.path.lexists(path)]
        self._folders = [one for one in (folder, *folder.parents) if not one.exists()]

    def take_back(self) -> None:
        """Delete these files and empty folders, unless another process uses the folder now."""
        if not self._folder.is_dir():
            return
        try:
            lock = FolderLock(self._folder, None)
        except LocalFault:
            return
        for path in self._files:
            with contextlib.suppress(OSError):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        lock.close()
        for folder in self._folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


@dataclass(frozen=True, slots=True)
class HeldFolder:
    """A locked data folder.

    Attributes:
        sentence: explanation for the user if the folder is unexpected.
        is_spare: whether this start created the folder as an additional folder of a trainer; the folder is deleted
            unless the peer trains.
    """

    lock: FolderLock
    fresh: FreshFolder
    sentence: str | None = None
    is_spare: bool = False

    def give_up(self) -> None:
        """Release the folder and restore its previous state after a failed start."""
        self.lock.close()
        self.fresh.take_back()

    def let_go(self, *, has_trained: bool) -> None:
        """Release the folder at the end of a session; delete a spare folder in which no peer trained."""
        if self.is_spare and not has_trained:
            self.give_up()
        else:
            self.lock.close()


def hold_folder(config: PeerConfig, what: str, files: Sequence[str] = ()) -> tuple[PeerConfig, HeldFolder]:
    """Lock the data folder of `config`, or an additional folder beside it (RUN-2, ...) if another peer uses the first.

    A peer returns to the free folder that its command used last. A seed never takes the folder of a trainer, or the
    reverse, because links contain a seed's key, and credit belongs to a trainer's key. The seed of a run takes the
    folder of the run's owner, because links to the run contain its key.

    An additional folder replaces only a default folder with the default key; a chosen folder or key is used, or causes
    an error. So no key runs twice. A peer in an additional folder also dials the running peers, whose addresses are in
    their folders.

    Args:
        what: the command that runs here, e.g. "peer join".
        files: names of files that the start may write there besides key, log and addresses.

    Returns:
        the configuration with the locked folder, and the folder.

    Raises:
        LocalFault: the folder cannot be used, or another process holds the chosen folder.
        UsageFault: the folder belongs to another run, whose manifest would be lost.
    """
    if {"data_dir", "identity"} & config.model_fields_set:
        if fault := other_run_in(config):
            raise UsageFault(f"{fault}; expected a folder of {config.run_id}, or a new folder; give another --data-dir")
        fresh = _fresh(config, files)
        make_data_dir(config)
        return config, HeldFolder(FolderLock(config.data_dir, what), fresh)
    usual = config.data_dir
    folders = [usual, *(usual.with_name(f"{usual.name}-{number}") for number in range(2, MOST_FOLDERS + 1))]
    own, unused = _fitting(folders, what)
    if what == SEED:
        # Published links of a run contain the key in its owner's folder, whatever ran there last.
        owners = [folder for folder in folders if (folder / OWNER_KEY_NAME).exists()]
        own = [*owners, *(folder for folder in own if folder not in owners)]
        unused = [folder for folder in unused if folder not in owners]
    num_stopped = sum(told_holder_of(folder) is None for folder in own)
    for folder in (*own, *unused):
        chosen = config if folder == usual else _moved(config, folder, folders)
        is_spare = folder != usual and not folder.exists() and what != SEED and not files
        fresh = _fresh(chosen, _FETCHED if is_spare else files)
        make_data_dir(chosen)
        try:
            lock = FolderLock(folder, what)
        except FolderInUse:
            continue
        # Another start may have created the folder a moment ago without getting its lock.
        is_new = folder != usual and folder in unused
        sentence = _sentence(config, folder, what, is_new=is_new, num_stopped=num_stopped)
        return chosen, HeldFolder(lock, fresh, sentence, is_spare)
    raise LocalFault(
        f"all {MOST_FOLDERS} folders for peers of {config.run_id} on this machine are in use; expected a free folder; "
        "choose a new folder with --data-dir"
    )


def _fitting(folders: Sequence[Path], what: str) -> tuple[list[Path], list[Path]]:
    """Return (the folders that this command used, latest first; the folders that no peer has used)."""
    seeds = what == SEED
    own, unused = list[Path](), list[Path]()
    for folder in folders:
        last = last_use_of(folder)
        if last == SEED or last in _TRAINERS:
            own += [folder] if (last == SEED) == seeds else []
        else:
            unused.append(folder)
    return sorted(own, key=_last_event_at, reverse=True), unused


def _sentence(config: PeerConfig, folder: Path, what: str, *, is_new: bool, num_stopped: int) -> str | None:
    is_seed = last_use_of(folder) == SEED
    if not is_seed and not config.peers and (sentence := stopped_seed(config.run_id)) is not None:
        return sentence
    named = shlex.join(["--data-dir", str(folder)])
    if num_stopped > 1:
        return (
            f"{num_stopped} peers have stopped here; the last of them continues ({named}); `peer runs` lists the others"
        )
    if not is_new:
        return None
    seeds, runs = last_use_of(config.data_dir) == SEED, told_holder_of(config.data_dir) is not None
    if runs:
        here = "this machine already runs the run's seed" if seeds else "a peer of this run is already running here"
    else:
        here = f"the default folder belongs to a {'seed' if seeds else 'trainer'} of this run"
    new = ""
    if what == SEED:
        new = ", and a new key: it is an additional bootstrap peer, and links to the other seed do not lead here"
    return f"{here}; this peer uses its own folder, {folder}{new}"


def _last_event_at(folder: Path) -> float:
    try:
        return (folder / "events.jsonl").stat().st_mtime
    except OSError:
        return 0.0


def _moved(config: PeerConfig, folder: Path, folders: Sequence[Path]) -> PeerConfig:
    """Return the configuration for an additional folder; its peer dials the peers that run in the other folders."""
    running = (one for one in folders if one != folder and told_holder_of(one) is not None)
    neighbours = (address for one in running for address in read_cached_peers(one / ADDRESSES_NAME))
    peers = tuple(dict.fromkeys([*config.peers, *neighbours]))
    return config.model_copy(update={"data_dir": folder, "identity": folder / IDENTITY_NAME, "peers": peers})


def _fresh(config: PeerConfig, files: Sequence[str]) -> FreshFolder:
    written = (config.identity, config.event_log_path, config.cached_peers_path, config.data_dir / ADDRESSES_NAME)
    return FreshFolder(config.data_dir, (*written, *(config.data_dir / name for name in files)))
