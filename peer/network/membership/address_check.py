"""A first check of a run's addresses: does a peer answer there, and is it of this run? Loads no slow libraries.

So a wrong address or run id is reported before torch or a DHT is loaded, and waiting for a member takes no processor
time.
"""

from __future__ import annotations

import asyncio
import errno
import queue
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from dht.ground.errors import Incompatible, LocalFault, NobodyReachable, PeerFault, UsageFault
from dht.ground.host import Host, PeerId
from dht.ground.quantities import clock_text, plural
from dht.identity.keys import Identity
from dht.identity.multiaddr import Multiaddr, parse_multiaddr, parse_peer_multiaddr
from dht.p2pd.lazy_hivemind import allow_parts_of_hivemind
from dht.records.signed_manifest import RunRecord
from peer.network.membership.invitation import invited_admission
from peer.network.membership.mistyped_run_id import in_other_run
from peer.network.membership.run_protocol import ask_for_run, run_of
from peer.network.membership.way_out import CONNECT, NO_NETWORK, has_way_to

KNOCK_SECONDS: Final = 5.0
"""Time limit for a connection to open; a home connection with a full queue takes two seconds."""
PAUSE_SECONDS: Final = 1.0
MAX_ADDRESSES: Final = 16
"""Number of addresses that a joiner dials at once."""
ASK_SECONDS: Final = 5.0
"""Time limit for members to state their run; without an answer the search for the run continues later."""
JOIN_ADVICE: Final = ", or raise --join-timeout; members of a private run answer only invited keys: join with --invite"

Answer = TypeVar("Answer")
_HOSTS: Final = ("ip4", "ip6", "dns", "dns4", "dns6")
_NO_ANSWER: Final = "no answer"
_REASONS: Final = {
    errno.ECONNREFUSED: "connection refused",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network is unreachable",
    errno.EADDRNOTAVAIL: "network is unreachable",
}


def look_first(
    run_id: str,
    addresses: Sequence[str],
    patience_seconds: float,
    *,
    own: PeerId | None = None,
    asks: bool = True,
    on_waiting: Callable[[str, float], object] = lambda reason, seconds: None,
    advice: str = "",
    later: Callable[[], Sequence[str]] = tuple,
) -> RunRecord | None:
    """Wait until a peer answers at one of the addresses, and ask for the run that is trained there. Blocks.

    Args:
        own: this peer's PeerId, if it joins.
        asks: whether to ask for the run; a private run answers only known keys.
        on_waiting: called with (reason, seconds waited) while no peer answers.
        advice: advice at the end of the error sentence if no peer answers.
        later: returns additional addresses known by then; called before each try.

    Returns:
        the run's record as signed by its owner, if a member sent it.

    Raises:
        UsageFault: only this peer's own address was given, or a different run is trained there.
        NobodyReachable: no peer answered in time, or only peers with different keys.
    """
    if own is not None and addresses and all(parse_peer_multiaddr(address)[0] == own for address in addresses):
        raise own_address(addresses[0])
    began = time.monotonic()
    until = time.time() + patience_seconds
    given = addresses
    while True:
        known = dict.fromkeys([*given, *later()])
        # A page also lists this peer if it was a member a moment ago.
        addresses = [address for address in known if parse_peer_multiaddr(address)[0] != own]
        tried = addresses[:MAX_ADDRESSES]
        silent = knock(tried, min(KNOCK_SECONDS, max(0.1, began + patience_seconds - time.monotonic())))
        if silent is None:
            break
        waited = time.monotonic() - began
        if waited >= patience_seconds:
            raise NobodyReachable(nobody_answered(run_id, addresses, waited, silent, advice))
        on_waiting(why_nobody(addresses, silent, until), waited)
        time.sleep(min(PAUSE_SECONDS, max(0.0, patience_seconds - waited)))
    other = asyncio.run(_run_there(run_id, tried)) if asks else None
    if isinstance(other, str):
        raise in_other_run(run_id, other)
    return other


def knock(addresses: Sequence[str], timeout_seconds: float) -> dict[str, str] | None:
    """Return the reason by address why no peer answers. None: a peer may answer, e.g. at an address without TCP.
    Blocks.
    """
    answers: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()

    def try_one(text: str, address: Multiaddr) -> None:
        answers.put((text, _reason(address, timeout_seconds)))

    for text in addresses:
        # A name that cannot be resolved blocks only its own thread, which ends with the process.
        threading.Thread(target=try_one, args=(text, parse_peer_multiaddr(text)[1]), daemon=True).start()
    end = time.monotonic() + timeout_seconds
    silent: dict[str, str] = {}
    while len(silent) < len(set(addresses)):
        try:
            text, reason = answers.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        if reason is None:
            return None
        silent[text] = reason
    return {text: silent.get(text, _NO_ANSWER) for text in addresses}


def why_nobody(addresses: Sequence[str], reasons: Mapping[str, str], until: float) -> str:
    """Return why the first address does not answer, and until when it is tried (unix seconds)."""
    clock = clock_text(until)
    if lacks_network(addresses):
        return f"{NO_NETWORK}; trying until {clock}"
    others = f" and {plural(len(addresses) - 1, 'other address')}" if len(addresses) > 1 else ""
    reason = reasons.get(addresses[0], _NO_ANSWER)
    why = " (members of a private run answer only invited keys)" if reason == _NO_ANSWER else f": {reason}"
    return f"no member answers at {addresses[0]}{others}{why}; trying until {clock}"


def nobody_answered(
    run_id: str, addresses: Sequence[str], waited: float, reasons: Mapping[str, str], advice: str = ""
) -> str:
    """Return the error sentence; `advice` is added if this machine has a network."""
    if lacks_network(addresses):
        return f"{NO_NETWORK}, so no member of {run_id} can be reached; {CONNECT}."
    where = "at the address" if len(addresses) == 1 else f"at any of {plural(len(addresses), 'address')}"
    reason = reasons.get(addresses[0], _NO_ANSWER)
    why = "" if reason == _NO_ANSWER else f": {reason}"
    return (
        f"no member of {run_id} answered {where} within {waited:.0f} s ({addresses[0]}{why}); expected one live "
        f"member; check the address and this machine's network{advice}."
    )


def lacks_network(addresses: Iterable[str]) -> bool:
    """Whether this machine's missing network is the reason why all these members (multiaddrs) cannot be reached."""
    parts = [part for address in addresses for part in parse_multiaddr(address).parts]
    hosts = [value for name, value in parts if name in _HOSTS]
    return bool(hosts) and not has_way_to(hosts)


def is_other_peer(what: str) -> bool:
    """Whether a dial failed because the answering peer has a different key than the one in the address."""
    return "mismatch" in what


def another_peer(address: str) -> NobodyReachable:
    """Return the error for an address at which a peer with a different key answers."""
    return NobodyReachable(
        f"another peer answers at {address}; expected the PeerId at the end of the address, which its key must prove; "
        "the address is mistyped, or it now belongs to another peer: copy the run's link again, or ask who gave it "
        "to you"
    )


def own_address(address: str) -> UsageFault:
    """Return the error for a peer that is to join at its own address."""
    return UsageFault(
        f"{address} is the address of this peer's own identity; expected another member's; if another process uses "
        "this key file, give this process its own --identity file"
    )


def _reason(address: Multiaddr, timeout_seconds: float) -> str | None:
    """Return why no connection opens; None if one opens, or if the address has no TCP port."""
    names = [value for name, value in address.parts if name in _HOSTS]
    ports = [value for name, value in address.parts if name == "tcp"]
    if not names or not ports:
        return None
    try:
        with socket.create_connection((names[0], int(ports[0])), timeout_seconds):
            return None
    except socket.gaierror:
        return "this name has no address, or it cannot be looked up now"
    except OSError as error:
        return _REASONS.get(error.errno or 0, _NO_ANSWER)


def ask_as_invited(run_id: str, addresses: Sequence[str], identity: Identity, ticket_pass: bytes) -> RunRecord | None:
    """Return a private run's record from members at these addresses, which see this peer's key; None if none sent it.

    Blocks.

    Raises:
        Incompatible: a member refused this key with a reason, and no member accepted it.
    """
    refusals: dict[PeerId, str] = {}
    admission = invited_admission(run_id, identity, ticket_pass)

    async def ask(host: Host, address: str) -> RunRecord | None:
        return await ask_for_run(host, admission, [address], on_refused=refusals.__setitem__)

    found = asyncio.run(_answers(identity, addresses[:MAX_ADDRESSES], ask))
    if not found and refusals:
        raise not_admitted(run_id, identity.peer_id, *next(iter(refusals.items())))
    return max(found, key=lambda record: record.revision, default=None)


def not_admitted(run_id: str, own: PeerId, remote: PeerId, reason: str) -> Incompatible:
    """Return the error for a member that refuses this peer."""
    return Incompatible(
        f"member {remote[-8:]} of {run_id} {reason}; expected to be admitted with the key {own}; ask the owner of the "
        "run for an invite for that key (`peer invite --key`), which also readmits a revoked key"
    )


async def _run_there(run_id: str, addresses: Sequence[str]) -> RunRecord | str | None:
    """Return the record of this run, or the id of the run that the members train instead; None without an answer."""

    async def ask(host: Host, address: str) -> RunRecord | str | None:
        return await run_of(host, run_id, [address])

    faults: dict[str, str] = {}
    said: list[RunRecord | str] = await _answers(Identity.generate(), addresses, ask, faults.__setitem__)
    wrong = [address for address, what in faults.items() if is_other_peer(what)]
    if wrong and len(wrong) == len(set(addresses)):
        raise another_peer(wrong[0])
    return next((answer for answer in said if isinstance(answer, str)), said[0] if said else None)


async def _answers(
    identity: Identity,
    addresses: Sequence[str],
    ask: Callable[[Host, str], Awaitable[Answer | None]],
    on_fault: Callable[[str, str], object] = lambda address, what: None,
) -> list[Answer]:
    """Return the answers of these addresses, which are asked concurrently by a temporary host.

    Args:
        on_fault: called with (address, reason) for each address that could not be dialled.
    """
    allow_parts_of_hivemind()
    from dht.p2pd.host import P2pdHost

    is_local = all("/127.0.0.1/" in address for address in addresses)
    said: dict[str, Answer] = {}
    try:
        async with P2pdHost(identity, [f"/ip4/{'127.0.0.1' if is_local else '0.0.0.0'}/tcp/0"]) as host:

            async def ask_at(address: str) -> None:
                try:
                    await host.connect(address, ASK_SECONDS)
                except PeerFault as fault:
                    on_fault(address, fault.what)
                    return
                if (answer := await ask(host, address)) is not None:
                    said[address] = answer

            async with asyncio.timeout(ASK_SECONDS):
                await asyncio.gather(*map(ask_at, addresses))
    except TimeoutError:
        pass  # a silent member does not invalidate the answers of others
    except LocalFault:
        return []  # the next step reports the fault
    return [said[address] for address in addresses if address in said]
