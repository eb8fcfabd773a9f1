"""The path manager: finds out whether other peers can dial this peer, and maintains paths in both directions.

The order is: direct, else relayed. Between two homes, hole punching is then tried by disconnecting and redialling. If
it fails, the relay stays for messages that must pass. A peer that cannot be dialled contributes work, but reduces none.
docs/volunteer/home-network.md describes the behaviour of routers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from averaging.rounds.round_facts import Fact
from dht.ground.errors import LocalFault, PeerFault
from dht.ground.host import PeerId
from dht.identity.multiaddr import Multiaddr, parse_multiaddr
from dht.p2pd.host import P2pdHost
from dht.p2pd.own_relay_trial import Relaying
from dht.records.peer_record import PeerRecord
from peer.events.path_events import ReachabilityFound, RelayChanged
from peer.events.peer_events import MemberChanged
from peer.network.reachability.hole_punching import HolePunching
from peer.network.reachability.path_and_relay_choice import (
    Network,
    PathKind,
    by_turns,
    choose_relays,
    confirmed,
    is_public,
    kind_of,
    networks_of,
    relays_in,
)
from peer.network.reachability.probe_client import Busy, DialBack

TICK_SECONDS: Final = 2.0
"""Pause between two checks; the daemon's connections are read as often anyway."""
CHECK_SECONDS: Final = 1800.0
"""Pause between two dial-back requests; routers forget forwarded ports, and machines move."""
CHECK_AGAIN_SECONDS: Final = 4.0
"""Pause if there was no member to ask, or all were busy."""
NUM_REFUTALS: Final = 2
"""Members that must fail to dial before this peer considers itself unreachable; one if there is only one. Nor may
as many have reached it."""
MAX_ASKED: Final = 3
MAX_BUSY: Final = 3
"""Number of busy answers of a member after which the others decide without it."""
RELAY_SECONDS: Final = 20.0
"""Time for a relay to accept this peer, measured as 0.5 to 9 s. Then another relay is tried."""
MAX_RELAY_STARTS: Final = 5
"""Restarts of a daemon whose relay starts limited (see `dht.p2pd.own_relay_trial`), and attempts at a failing test."""
log = logging.getLogger(__name__)


@dataclass
class Paths:
    """Manages this peer's paths; `run` never ends.

    Attributes:
        members: returns live members, without this peer.
        dial_back: asks a member to dial this peer's addresses from a fresh connection.
        check_relay: tests the relay at these addresses.
        tell: called with whether this peer is dialable from outside, and whether it can reduce for all trainers.
        uses_relays: whether others may reach this peer through relays.
        relays: whether this peer relays for others.
        announce: addresses that the owner wants announced.
    """

    host: P2pdHost
    members: Callable[[], list[PeerRecord]]
    dial_back: Callable[[PeerId, list[str]], Awaitable[DialBack]]
    check_relay: Callable[[Sequence[str]], Awaitable[Relaying]]
    tell: Callable[[bool, bool], None]
    report: Callable[[Fact], None]
    clock: Callable[[], float]
    randomness: random.Random
    uses_relays: bool
    relays: bool
    announce: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._is_dialable: bool | None = None
        self._check_at = self._relay_missed_at = self.clock()
        self._answers: dict[PeerId, DialBack] = {}
        """Answers of the members asked since the last decision; empty for a member that could not answer."""
        self._num_busy: Counter[PeerId] = Counter()
        self._asked_neighbours = False
        """Only neighbours were asked, because no other member was connected; their result holds until one is."""
        self._kinds: dict[PeerId, PathKind] = {}
        self._holes = HolePunching(self.host, self.clock, self.randomness)
        self._led_by: tuple[PeerId, ...] = ()
        self._is_lost_told = False
        self._avoided: set[PeerId] = set()

    async def run(self) -> None:
        """Check the paths repeatedly; never ends."""
        must_relay = self.relays and any(is_public(parse_multiaddr(address)) for address in self.host.addresses())
        while True:
            try:
                if must_relay:
                    await self._serve_as_relay(())
                    must_relay = False
                await self._look()
            except (PeerFault, LocalFault) as fault:
                log.info("checking the paths to other peers failed: %s", fault)
            await asyncio.sleep(TICK_SECONDS)

    async def _look(self) -> None:
        connections = await self.host.connections()
        if self.clock() >= self._check_at or (self._asked_neighbours and self._strangers(connections)):
            await self._check(connections)
        await self._watch_relay(connections)
        self._tell_paths(connections)
        await self._holes.punch()

    # -------------------------------------------------------------------------------------------- can we be dialled?

    async def _check(self, connections: dict[PeerId, list[Multiaddr]]) -> None:
        now = self.clock()
        self._check_at = now + CHECK_AGAIN_SECONDS
        everywhere = [address for addresses in connections.values() for address in addresses]
        if all(address.is_loopback for address in everywhere):
            # All members are on this machine, or there are none, so none could answer.
            return
        networks = {peer_id: networks_of(addresses) for peer_id, addresses in connections.items()}
        direct = {
            peer_id
            for peer_id, addresses in connections.items()
            if any(not address.is_relayed and not address.is_loopback for address in addresses)
        }
        strangers = self._strangers(connections)
        self._asked_neighbours = not strangers
        askable = strangers or [record.peer_id for record in self.members() if record.peer_id in direct]
        self.randomness.shuffle(askable)
        for member in by_turns([member for member in askable if member not in self._answers], networks)[:MAX_ASKED]:
            try:
                self._answers[member] = await self.dial_back(member, self._own_addresses())
            except Busy:
                self._num_busy[member] += 1
                if self._num_busy[member] < MAX_BUSY:
                    continue
                self._answers[member] = DialBack()
            except PeerFault as fault:
                log.info("no member reports whether others can dial this peer: %s", fault)
                self._answers[member] = DialBack()
            if await self._decide(askable, networks):
                return

    def _strangers(self, connections: Mapping[PeerId, Sequence[Multiaddr]]) -> list[PeerId]:
        """Return members at a public address; members of this peer's own network cannot tell whether strangers get
        through.
        """
        return [record.peer_id for record in self.members() if networks_of(connections.get(record.peer_id, ()))]

    async def _decide(self, askable: Sequence[PeerId], networks: Mapping[PeerId, frozenset[Network]]) -> bool:
        """Return whether the members' answers suffice for a decision, after acting on it."""
        known = {member: found for member, found in self._answers.items() if found.is_known}
        left = [member for member in askable if member not in self._answers]
        reached = {member: found.reached for member, found in known.items()}
        addresses = confirmed(reached, {member: networks.get(member, frozenset()) for member in (*known, *left)})
        reaching = [member for member, found in known.items() if found.reached]
        refuting = [member for member, found in known.items() if not found.reached]
        is_over = not left or len(known) >= MAX_ASKED
        is_reached = bool(addresses or (is_over and reaching and len(reaching) >= len(refuting)))
        is_refuted = not is_reached and len(refuting) >= min(NUM_REFUTALS, len(known) + len(left)) > 0
        if not (is_reached or is_refuted or is_over):
            return False
        self._answers.clear()
        self._num_busy.clear()
        if is_reached:
            await self._is_reached(reaching[-1], known[reaching[-1]], addresses)
        elif is_refuted:
            await self._is_refuted(refuting[-1], known[refuting[-1]])
        return True

    def _own_addresses(self) -> list[str]:
        """Return the addresses on which this peer listens; relayed addresses would be dialled through the relay."""
        return [address for address in self.host.addresses() if not parse_multiaddr(address).is_relayed]

    async def _is_reached(self, member: PeerId, found: DialBack, addresses: Sequence[str]) -> None:
        """Record that this peer can be dialled, and announce the confirmed `addresses`."""
        self._check_at = self.clock() + CHECK_SECONDS
        if self._is_dialable is not True:
            self._is_dialable = True
            self._report_reachability(member, found.reached)
        public = [address for address in addresses if is_public(parse_multiaddr(address))]
        # A port that the router forwards, and that is not announced yet.
        forwarded = [address for address in public if address not in self.host.addresses()]
        options = self.host.options
        if options.reachability == "private" or (self.relays and public and options.reachability != "public"):
            await self._serve_as_relay(forwarded)
        elif forwarded:
            await self.host.change(options, self._announced_with(forwarded))

    async def _is_refuted(self, member: PeerId, found: DialBack) -> None:
        self._check_at = self.clock() + CHECK_SECONDS
        if self._is_dialable is not False:
            self._is_dialable = False
            self._report_reachability(member, tuple(address for address, _ in found.failed))
        if self.uses_relays and self.host.options.reachability != "private":
            await self._go_behind_relays()

    def _report_reachability(self, member: PeerId, addresses: tuple[str, ...]) -> None:
        self.report(ReachabilityFound(asked=member, reachable=self._is_dialable is True, addresses=addresses))

    # --------------------------------------------------------------------------------------------------- being a relay

    async def _serve_as_relay(self, forwarded: Sequence[str]) -> None:
        """Become a public member; a relaying peer tests its relay, and restarts while the relay is limited."""
        options = replace(self.host.options, reachability="public", trusted_relays=(), relays_for_others=self.relays)
        await self.host.change(options, self._announced_with(forwarded))
        if not self.relays:
            return
        relaying: Relaying = "none"
        for _ in range(MAX_RELAY_STARTS):
            try:
                relaying = await self.check_relay(self.host.local_addresses()[:1])
            except (PeerFault, LocalFault) as fault:
                # Daemons that did not start in time, e.g. on a machine that is still booting.
                log.info("this peer's relay could not be tried: %s", fault)
                await asyncio.sleep(TICK_SECONDS)
                continue
            if relaying != "limited":
                break
            await self.host.change(options)
        self.report(RelayChanged(own_relay=relaying))

    def _announced_with(self, forwarded: Sequence[str]) -> list[str]:
        """Return the addresses to announce; empty: those that the daemon finds."""
        if not forwarded:
            return list(self.announce)
        return list(dict.fromkeys([*self.announce, *forwarded, *self._own_addresses()]))

    # ------------------------------------------------------------------------------------------------ behind relays

    async def _go_behind_relays(self) -> None:
        self._relay_missed_at = self.clock()
        relays = choose_relays(self.members(), await self.host.connected_addresses(), self._avoided)
        if not relays:
            return
        self._avoided = set(relays)
        options = replace(
            self.host.options,
            reachability="private",
            trusted_relays=tuple(relays.values()),
            relays_for_others=False,
        )
        # Announcing undialable addresses would hide the relays' addresses.
        await self.host.change(options, [])
        self._relay_missed_at = self.clock()

    async def _watch_relay(self, connections: dict[PeerId, list[Multiaddr]]) -> None:
        if self._is_dialable is not False or not self.uses_relays:
            return
        # The daemon lists an address for a while after its relay has gone.
        led_by = tuple(relay for relay in relays_in(self.host.addresses()) if relay in connections)
        now = self.clock()
        if led_by:
            if not self._led_by:
                self.report(RelayChanged(led_by))
            self._is_lost_told, self._relay_missed_at = False, now
        elif now - self._relay_missed_at >= RELAY_SECONDS:
            if not self._is_lost_told:
                self._is_lost_told = True
                self.report(RelayChanged((), now - self._relay_missed_at))
            await self._go_behind_relays()
        self._led_by = led_by

    # -------------------------------------------------------------------------------------------------- paths to others

    def _tell_paths(self, connections: dict[PeerId, list[Multiaddr]]) -> None:
        members = self.members()
        kinds = dict[PeerId, PathKind]()
        for record in members:
            addresses = [address for address in connections.get(record.peer_id, []) if not address.is_loopback]
            kind = kind_of(addresses, self._is_dialable is not False, record.reachable)
            if kind is None:
                continue
            kinds[record.peer_id] = kind
            if self._kinds.get(record.peer_id) != kind:
                self.report(MemberChanged(record.peer_id, path=kind))
            self._holes.note(record.peer_id, is_relayed=kind == "relayed")
        self._holes.forget_all_but({record.peer_id for record in members})
        # A path that is interrupted briefly is not reported again when it returns unchanged.
        self._kinds = {**{peer: kind for peer, kind in self._kinds.items() if peer in connections}, **kinds}
        trainers = [record.peer_id for record in members if record.role == "trainer"]
        is_near_all = bool(trainers) and all(kinds.get(peer, "relayed") != "relayed" for peer in trainers)
        self.tell(self._is_dialable is not False, self._is_dialable is not False or is_near_all)
