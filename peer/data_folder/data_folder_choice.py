"""Which data folder a peer takes: the one it had last, or a further one beside those of other peers of the run."""

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
"""Peers of one run on one machine that get a folder without being told: more than any machine trains well."""

_TRAINERS = ("peer join", "a training loop")
_FETCHED = (ADDRESSES_NAME, RUN_RECORD_NAME, "files")
"""What the network process writes into a folder before its peer trains, but for checkpoints."""


class FreshFolder:
    """Files that a start, or a new run, writes before another peer has seen its key; deleted when it fails.

    Create it before the folder, because it notes what is missing.

    Args:
        files: that may be written, in the folder or elsewhere; folders of files too.
    """

    def __init__(self, folder: Path, files: Iterable[Path]) -> None:
        self._folder = folder
        self._files = [path for path in (*files, folder / LOCK_NAME) if not os.path.lexists(path)]
        self._folders = [one for one in (folder, *folder.parents) if not one.exists()]

    def take_back(self) -> None:
        """Delete these files and empty folders, unless another process uses the folder by now."""
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
        sentence: for the person, when it is not the folder that they expect.
        is_spare: a further folder of a trainer, made by this start, so that it goes again unless the peer trained.
    """

    lock: FolderLock
    fresh: FreshFolder
    sentence: str | None = None
    is_spare: bool = False

    def give_up(self) -> None:
        """Let the folder go and leave it as it was: nothing came of this start."""
        self.lock.close()
        self.fresh.take_back()

    def let_go(self, *, has_trained: bool) -> None:
        """The session is over: the folder stays, but a spare one in which nobody trained."""
        if self.is_spare and not has_trained:
            self.give_up()
        else:
            self.lock.close()


def hold_folder(config: PeerConfig, what: str, files: Sequence[str] = ()) -> tuple[PeerConfig, HeldFolder]:
    """Lock the data folder of `config`, or a further one beside it (RUN-2, ...) when that is another peer's.

    A peer comes back to the free folder that its command used last. A seed never takes the folder of a trainer, nor the
    reverse. Links lead to a seed's key, and credit stands under a trainer's. But the seed of a run takes the folder of
    its owner: links to the run lead there.

    Only a default folder gives way, with the default key: if you name a folder or a key, you get that or a sentence. So
    a key never runs twice. A peer in a further folder also dials those that run, whose addresses are in their folders.

    Args:
        what: runs here, e.g. "peer join".
        files: names of what a start may write there beside key, log and addresses.

    Returns:
        the choices with the folder that was taken, and the folder.

    Raises:
        LocalFault: the folder cannot be used, or another process holds what was named.
        UsageFault: it is the folder of another run, whose manifest would be lost.
    """
    if {"data_dir", "identity"} & config.model_fields_set:
        if fault := other_run_in(config):
            raise UsageFault(f"{fault}; expected one of {config.run_id}, or a new one; give another --data-dir")
        fresh = _fresh(config, files)
        make_data_dir(config)
        return config, HeldFolder(FolderLock(config.data_dir, what), fresh)
    usual = config.data_dir
    folders = [usual, *(usual.with_name(f"{usual.name}-{number}") for number in range(2, MOST_FOLDERS + 1))]
    own, unused = _fitting(folders, what)
    if what == SEED:
        # Published links of a run lead to the key in its owner's folder, whatever ran there last.
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
        # Another start may have made it a moment ago, and lost the race for it.
        is_new = folder != usual and folder in unused
        sentence = _sentence(config, folder, what, is_new=is_new, num_stopped=num_stopped)
        return chosen, HeldFolder(lock, fresh, sentence, is_spare)
    raise LocalFault(
        f"the {MOST_FOLDERS} folders for peers of {config.run_id} on this machine are taken; expected a free one; give "
        "--data-dir to one more"
    )


def _fitting(folders: Sequence[Path], what: str) -> tuple[list[Path], list[Path]]:
    """(those that this command used, the latest first; those that no peer has had)."""
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
        return f"of {num_stopped} peers that stopped here the last one goes on ({named}); `peer runs` lists the others"
    if not is_new:
        return None
    seeds, runs = last_use_of(config.data_dir) == SEED, told_holder_of(config.data_dir) is not None
    if runs:
        here = "this machine already runs the run's seed" if seeds else "a peer of this run runs here already"
    else:
        here = f"the usual folder is that of a {'seed' if seeds else 'trainer'} of this run"
    new = ""
    if what == SEED:
        new = ", and a new key: it is one more bootstrap peer, and links to the other one do not lead here"
    return f"{here}; this peer keeps a folder of its own, {folder}{new}"


def _last_event_at(folder: Path) -> float:
    try:
        return (folder / "events.jsonl").stat().st_mtime
    except OSError:
        return 0.0


def _moved(config: PeerConfig, folder: Path, folders: Sequence[Path]) -> PeerConfig:
    """The choices for a further folder; its peer dials those that run in the other ones."""
    running = (one for one in folders if one != folder and told_holder_of(one) is not None)
    neighbours = (address for one in running for address in read_cached_peers(one / ADDRESSES_NAME))
    peers = tuple(dict.fromkeys([*config.peers, *neighbours]))
    return config.model_copy(update={"data_dir": folder, "identity": folder / IDENTITY_NAME, "peers": peers})


def _fresh(config: PeerConfig, files: Sequence[str]) -> FreshFolder:
    written = (config.identity, config.event_log_path, config.cached_peers_path, config.data_dir / ADDRESSES_NAME)
    return FreshFolder(config.data_dir, (*written, *(config.data_dir / name for name in files)))
