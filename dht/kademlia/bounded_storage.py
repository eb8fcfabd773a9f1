"""Bounded storage of records that one DHT member keeps for others.

hivemind's own storage limits neither keys nor entries nor bytes. Also, when it refuses an older entry, it still
shortens the life of the newer one, so anyone could make a peer flicker by replaying its earlier records. Here an older
entry is refused without side effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Any, Final

from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils.timed_storage import ValueWithExpiration

from dht.ground.store import MAX_ENTRIES_PER_DICTIONARY

MAX_KEYS: Final = 1024
"""Dictionaries and values that a member keeps for others."""
MAX_DICTIONARY_BYTES: Final = 256 * 1024
"""Above 4 MiB a holder cannot answer any more, and looks dead to all readers."""
MAX_STORAGE_BYTES: Final = 64 * 1024 * 1024
"""Bytes that a member keeps for others."""
FOREIGN_SHARE: Final = 0.5
"""Share of keys and bytes for records of other runs: a stranger can create a thousand runs at no cost, and this run
keeps its room."""
_ENTRY_OVERHEAD_BYTES: Final = 64
"""Size of subkey (a 52-character PeerId) and expiry of one entry on the wire."""


class BoundedStorage:
    """Expiring values and dictionaries of values, with the interface that hivemind's `DHTProtocol` uses.

    Args:
        now: returns unix seconds.
        rank_of: returns a number inside a value that must never decrease under one key, whatever the expiry: the
            revision of a run record, or the sequence of a profile. 0 for values without one.
        is_foreign: whether a value belongs to a different run than this member.

    When a limit is reached, existing entries stay, and new keys or entries are refused until one expires. Refusing
    newcomers for one lifetime of a record is better than letting a flood displace the members.
    """

    def __init__(
        self,
        now: Callable[[], float],
        rank_of: Callable[[bytes], int] = lambda value: 0,
        is_foreign: Callable[[bytes], bool] = lambda value: False,
        *,
        max_keys: int = MAX_KEYS,
        max_bytes: int = MAX_STORAGE_BYTES,
    ) -> None:
        self._now = now
        self._rank_of = rank_of
        self._is_foreign = is_foreign
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._values: dict[DHTID, Any] = {}
        self._num_bytes: dict[DHTID, int] = {}
        self._foreign: set[DHTID] = set()

    @property
    def num_bytes(self) -> int:
        return sum(self._num_bytes.values())

    def get(self, key: DHTID) -> Any:
        """Return the live `ValueWithExpiration` under `key`, or None."""
        item = self._values.get(key)
        if item is None:
            return None
        if item.expiration_time < self._now():
            self._drop(key)
            return None
        return item

    def store(self, key: DHTID, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        """Store a value, or with `subkey` one entry of a dictionary. Return False if it is refused."""
        if isinstance(value, DictionaryDHTValue):
            entries = list(value.items())
            return all([self.store_subkey(key, name, entry.value, entry.expiration_time) for name, entry in entries])
        if subkey is not None:
            return self.store_subkey(key, subkey, value, expiration_time)
        present = self.get(key)
        if expiration_time <= self._now() or not self._has_room(key, len(value), value):
            return False
        if present is not None:
            if isinstance(present.value, DictionaryDHTValue):
                return False
            old_rank, new_rank = self._rank_of(present.value), self._rank_of(value)
            if new_rank < old_rank or (new_rank == old_rank and expiration_time <= present.expiration_time):
                return False
        self._put(key, ValueWithExpiration(value, expiration_time), len(value), value)
        return True

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Store one entry of the dictionary under `key`. Return False if it is refused."""
        if expiration_time <= self._now():
            return False
        present = self.get(key)
        if present is not None and not isinstance(present.value, DictionaryDHTValue):
            return False
        dictionary = present.value if present is not None else DictionaryDHTValue()
        entries = dict(dictionary.items())
        replaced = entries.get(subkey)
        if replaced is not None and (
            expiration_time <= replaced.expiration_time or self._rank_of(value) < self._rank_of(replaced.value)
        ):
            return False
        if replaced is None and len(entries) >= MAX_ENTRIES_PER_DICTIONARY:
            return False
        num_bytes = sum(len(entry.value) + _ENTRY_OVERHEAD_BYTES for entry in entries.values())
        num_bytes += len(value) + _ENTRY_OVERHEAD_BYTES
        num_bytes -= len(replaced.value) + _ENTRY_OVERHEAD_BYTES if replaced is not None else 0
        if num_bytes > MAX_DICTIONARY_BYTES or not self._has_room(key, num_bytes, value):
            return False
        dictionary.store(subkey, value, expiration_time)
        self._put(key, ValueWithExpiration(dictionary, dictionary.latest_expiration_time), num_bytes, value)
        return True

    def items(self) -> Iterator[tuple[DHTID, Any]]:
        """Return all live (key, `ValueWithExpiration`) pairs."""
        self._drop_expired()
        return iter(list(self._values.items()))

    def __contains__(self, key: DHTID) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        self._drop_expired()
        return len(self._values)

    def _put(self, key: DHTID, item: Any, num_bytes: int, value: bytes) -> None:
        self._values[key], self._num_bytes[key] = item, num_bytes
        if self._is_foreign(value):
            self._foreign.add(key)

    def _has_room(self, key: DHTID, num_bytes: int, value: bytes) -> bool:
        is_foreign = self._is_foreign(value)
        if self._fits(key, num_bytes, is_foreign):
            return True
        self._drop_expired()
        return self._fits(key, num_bytes, is_foreign)

    def _fits(self, key: DHTID, num_bytes: int, is_foreign: bool) -> bool:
        if is_foreign and not self._fits_among(self._foreign, key, num_bytes, FOREIGN_SHARE):
            return False
        return self._fits_among(self._values.keys(), key, num_bytes, 1.0)

    def _fits_among(self, keys: Set[DHTID], key: DHTID, num_bytes: int, share: float) -> bool:
        held = sum(self._num_bytes[other] for other in keys if other != key)
        num_keys = len(keys) + (key not in keys)
        return num_keys <= share * self._max_keys and held + num_bytes <= share * self._max_bytes

    def _drop_expired(self) -> None:
        now = self._now()
        for key in [key for key, item in self._values.items() if item.expiration_time < now]:
            self._drop(key)

    def _drop(self, key: DHTID) -> None:
        del self._values[key]
        del self._num_bytes[key]
        self._foreign.discard(key)
