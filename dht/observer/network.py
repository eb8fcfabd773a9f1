"""The network of an observer: a host on the chosen transport, with a store on it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

from dht.admission.admission import Admission
from dht.ground.errors import LocalFault
from dht.ground.host import Host
from dht.ground.store import RecordStore
from dht.identity.keys import Identity
from dht.observer.host_choice import INSTALL, HostBackend
from dht.p2pd.lazy_hivemind import allow_parts_of_hivemind
from dht.pylibp2p.protobuf_clash import make_room_for_libp2p


class ObserverStore(RecordStore, Protocol):
    """A `RecordStore` that records why addresses did not answer."""

    @property
    def dial_faults(self) -> dict[str, str]:
        """Address -> reason of the failed dials of the last `bootstrap`."""


@dataclass(frozen=True, slots=True)
class ObserverEntry:
    """Credentials of an observer in a private run.

    Attributes:
        learn_rules: awaited with the host and the addresses of members after each dial; fetches the member rules.
    """

    identity: Identity
    admission: Admission
    learn_rules: Callable[[Host, list[str]], Awaitable[None]]


@contextlib.asynccontextmanager
async def observer_network(
    backend: HostBackend,
    addresses: Sequence[str],
    entry: ObserverEntry | None = None,
    listen: Sequence[str] = (),
    announce: Sequence[str] = (),
) -> AsyncIterator[tuple[Host, ObserverStore]]:
    """Yield a started host and a store that reads the DHT and serves no one; both are closed at the end.

    In an open run the key is new each time: an observer needs no identity, and publishes no record.

    Args:
        addresses: addresses of the members to dial; if all are on this machine, the daemon listens only there.
        entry: credentials for a private run.
        listen, announce: addresses of the daemon; empty: as needed for dialling.

    Raises:
        LocalFault: the daemon cannot run, or py-libp2p cannot be loaded.
    """
    if backend == "libp2p":
        make_room_for_libp2p()
    identity = Identity.generate() if entry is None else entry.identity
    allow_parts_of_hivemind()
    # These imports take half a second, mostly for py-libp2p; a page may already be served meanwhile.
    hosts = await asyncio.to_thread(_load_hosts, backend)
    stores = await asyncio.to_thread(importlib.import_module, "dht.kademlia.dht_store")
    if backend == "libp2p":
        host = hosts.Libp2pHost(identity)
    else:
        is_local = bool(addresses) and all("/127.0.0.1/" in address for address in addresses)
        to_dial = "/ip4/127.0.0.1/tcp/0" if is_local else "/ip4/0.0.0.0/tcp/0"
        host = hosts.P2pdHost(identity, listen or [to_dial], announce)
    async with host:
        admission = None if entry is None else entry.admission
        learn_rules = None if entry is None else functools.partial(entry.learn_rules, host)
        store = stores.HivemindStore(host, serves=False, admission=admission, after_dial=learn_rules)
        try:
            await store.start()
            yield host, store
        finally:
            await store.close()


def _load_hosts(backend: HostBackend) -> ModuleType:
    try:
        return importlib.import_module("dht.pylibp2p.host" if backend == "libp2p" else "dht.p2pd.host")
    except ImportError as error:
        raise LocalFault(
            f"the transport {backend} cannot be loaded ({error}); expected an intact installation; "
            f"run {INSTALL}, or use --host-backend p2pd"
        ) from error
