"""What others read, as their records say, and how that ranks the units for one peer. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dht.records.data_reading import NO_UNIT, NUM_UNITS, Reading
from peer.data_division.permutation import U64, mixed, mixed_key

MAX_READERS = 256
"""Others that are looked at: with more of them there are fewer than four units for each."""

DONE, TAKEN = -1, -2
"""Standings of units that are not free."""

Done = NDArray[np.bool_]
"""bool [NUM_UNITS]."""


@dataclass(frozen=True, slots=True)
class ReadingView:
    """What others read.

    Attributes:
        keys: `key_of` each, uint64 [n].
        epochs, units: of each, int64 [n].
        done: of `done_epoch`, by what any of them knows.
    """

    keys: U64
    epochs: NDArray[np.int64]
    units: NDArray[np.int64]
    done: Done
    done_epoch: int

    @property
    def epoch(self) -> int:
        """The one that at least half of the others have reached; -1 without others."""
        return int(np.sort(self.epochs)[(len(self.epochs) - 1) // 2]) if len(self.epochs) else -1


def key_of(peer_id: str) -> int:
    """64 bits for a peer."""
    return int.from_bytes(hashlib.sha256(f"reads|{peer_id}".encode()).digest()[:8], "big")


def view_of(readings: Iterable[tuple[str, Reading]], data: int, epoch: int) -> ReadingView:
    """The view of one peer.

    Args:
        readings: of the others, (PeerId, reading).
        data: what it reads; others who read other data are left out.
        epoch: its own; what others have done counts in this one.
    """
    chosen = [one for one in readings if one[1].data == data][:MAX_READERS]
    done = np.zeros(NUM_UNITS, bool)
    for _, reading in chosen:
        if reading.epoch == epoch:
            done |= done_from(reading.done)
    return ReadingView(
        np.array([key_of(peer_id) for peer_id, _ in chosen], np.uint64),
        np.array([reading.epoch for _, reading in chosen], np.int64),
        np.array([reading.unit for _, reading in chosen], np.int64),
        done,
        epoch,
    )


NOBODY = view_of((), 0, 0)


def done_from(content: bytes) -> Done:
    """Bits as in `Reading.done`."""
    return np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little").astype(bool)


def done_to(done: Done) -> bytes:
    """Back from `done_from`."""
    return np.packbits(done, bitorder="little").tobytes()


def unit_keys(epoch: int) -> U64:
    """64 bits for each unit of an epoch."""
    return mixed(np.arange(NUM_UNITS, dtype=np.uint64) + np.uint64(mixed_key(epoch)))


@dataclass(frozen=True, slots=True)
class Standings:
    """How each unit of an epoch stands for one peer.

    Attributes:
        ranks: int64 [NUM_UNITS]: `DONE`; `TAKEN` by another (of one that it reads itself: by another of higher rank);
            else its rank for the unit among all live readers, 0 for its own.
        scores: of the reader of rank 0, which takes its units from the highest score down: uint64 [NUM_UNITS].
        owners: `key_of` the reader of rank 0: uint64 [NUM_UNITS].
    """

    ranks: NDArray[np.int64]
    scores: U64
    owners: U64


def standings(me: int, epoch: int, unit: int | None, view: ReadingView) -> Standings:
    """How the units of `epoch` stand for the peer with key `me`, which reads `unit`."""
    keys = unit_keys(epoch)
    mine = mixed(keys ^ np.uint64(me))
    theirs = mixed(keys[None, :] ^ view.keys[:, None])
    ranks: NDArray[np.int64] = (theirs > mine).sum(axis=0).astype(np.int64)
    here = (view.epochs == epoch) & (view.units != NO_UNIT)
    for reader in np.flatnonzero(here).tolist():
        taken = int(view.units[reader])
        if taken != unit or theirs[reader, taken] > mine[taken]:
            ranks[taken] = TAKEN
    if view.done_epoch == epoch:
        ranks[view.done] = DONE
    everyone = np.concatenate((mine[None, :], theirs))
    owners = np.concatenate((np.array([me], np.uint64), view.keys))[everyone.argmax(axis=0)]
    return Standings(ranks, everyone.max(axis=0), owners)
