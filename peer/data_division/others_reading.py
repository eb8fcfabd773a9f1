"""The units that other peers read, by their records, and the resulting ranks of the units for one peer. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dht.records.data_reading import NO_UNIT, NUM_UNITS, Reading
from peer.data_division.permutation import U64, mixed, mixed_key

MAX_READERS = 256
"""Maximum number of other readers that are considered; with more, each would have fewer than four units."""

DONE, TAKEN = -1, -2
"""Ranks of units that are not free."""

Done = NDArray[np.bool_]
"""bool [NUM_UNITS]."""


@dataclass(frozen=True, slots=True)
class ReadingView:
    """The reading state of other peers.

    Attributes:
        keys: `key_of` each reader, uint64 [n].
        epochs, units: epoch and unit of each reader, int64 [n].
        done: units of `done_epoch` that any reader reports as finished.
    """

    keys: U64
    epochs: NDArray[np.int64]
    units: NDArray[np.int64]
    done: Done
    done_epoch: int

    @property
    def epoch(self) -> int:
        """Return the latest epoch that at least half of the others have reached, or -1 without others."""
        return int(np.sort(self.epochs)[(len(self.epochs) - 1) // 2]) if len(self.epochs) else -1


def key_of(peer_id: str) -> int:
    """Return a 64-bit key for a peer."""
    return int.from_bytes(hashlib.sha256(f"reads|{peer_id}".encode()).digest()[:8], "big")


def view_of(readings: Iterable[tuple[str, Reading]], data: int, epoch: int) -> ReadingView:
    """Build the view of one peer.

    Args:
        readings: (PeerId, reading) of each other peer.
        data: identity of the peer's data; readers of different data are omitted.
        epoch: the peer's own epoch, whose finished units are counted.
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
    """Decode the bits of `Reading.done`."""
    return np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little").astype(bool)


def done_to(done: Done) -> bytes:
    """Encode for `Reading.done`; the inverse of `done_from`."""
    return np.packbits(done, bitorder="little").tobytes()


def unit_keys(epoch: int) -> U64:
    """Return a 64-bit key for each unit of an epoch."""
    return mixed(np.arange(NUM_UNITS, dtype=np.uint64) + np.uint64(mixed_key(epoch)))


@dataclass(frozen=True, slots=True)
class Standings:
    """The status of each unit of an epoch for one peer.

    Attributes:
        ranks: int64 [NUM_UNITS]. `DONE`, or `TAKEN` by another peer (for the unit that this peer reads: by a peer of
            higher rank), or otherwise this peer's rank among all live readers, which is 0 for its own units.
        scores: score of the reader of rank 0, which takes its units from the highest score down: uint64 [NUM_UNITS].
        owners: `key_of` the reader of rank 0: uint64 [NUM_UNITS].
    """

    ranks: NDArray[np.int64]
    scores: U64
    owners: U64


def standings(me: int, epoch: int, unit: int | None, view: ReadingView) -> Standings:
    """Compute the status of the units of `epoch` for the peer with key `me`, which reads `unit`."""
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
