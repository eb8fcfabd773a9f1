"""The path manager: dialable or not, behind which relay, through which hole; with a host that does as it is told."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from averaging.rounds.round_facts import Fact
from dht.ground.errors import LocalFault, PeerUnreachable
from dht.ground.host import PeerId, Stream
from dht.identity.multiaddr import Multiaddr, parse_multiaddr
from dht.p2pd.daemon import DaemonOptions
from dht.p2pd.own_relay_trial import Relaying
from peer.events.path_events import ReachabilityFound, RelayChanged
from peer.events.peer_events import Event, MemberChanged
from peer.network.reachability import hole_punching
from peer.network.reachability.hole_punching import PUNCH_AFTER_SECONDS
from peer.network.reachability.paths import (
    CHECK_SECONDS,
    MAX_RELAY_STARTS,
    RELAY_SECONDS,
    TICK_SECONDS,
    Paths,
)
from peer.network.reachability.probe_client import Busy, DialBack
from tests.kit.network.memory_networks import named, now
from tests.kit.records import make_record
from tests.simulator.virtual_time import run_virtual

SEEDS = [named(number) for number in range(1, 5)]
ME, HOME = sorted([named(8), named(9)])
INSIDE = "/ip4/192.168.1.100/tcp/4001"
OUTSIDE = f"/ip4/8.8.4.4/tcp/4001/p2p/{ME}"
AGAIN_SECONDS = 300.0
"""In place of an hour, whose every second would be looked at."""

parsed = functools.cache(parse_multiaddr)
"""The same few paths are asked for in every tick of virtual hours."""


def at_seed(number: int) -> str:
    return f"/ip4/8.8.8.{number}/tcp/4001/p2p/{SEEDS[number - 1]}"


def through(number: int, peer_id: PeerId) -> str:
    return f"{at_seed(number)}/p2p-circuit/p2p/{peer_id}"


class ToldHost:
    """Whatever a test says about connections and addresses; keeps what it was asked to do."""

    def __init__(self) -> None:
        self.peer_id = ME
        self.options = DaemonOptions()
        self.own = [f"{INSIDE}/p2p/{ME}"]
        self.paths: dict[PeerId, list[str]] = {seed: [at_seed(number)] for number, seed in enumerate(SEEDS, 1)}
        self.changes: list[tuple[DaemonOptions, list[str] | None]] = []
        self.redials: list[tuple[float, PeerId]] = []
        self.change_faults: list[LocalFault] = []
        self.moved = 0
        self.on_redial: Callable[[PeerId], None] = lambda peer_id: None

    def addresses(self) -> list[str]:
        return self.own

    def local_addresses(self) -> list[str]:
        return ["/ip4/127.0.0.1/tcp/4001"]

    async def change(self, options: DaemonOptions, announce: Sequence[str] | None = None) -> None:
        if self.change_faults:
            raise self.change_faults.pop(0)
        self.options = options
        self.changes.append((options, None if announce is None else list(announce)))

    def moved_bytes(self, peer_id: PeerId) -> int:
        return self.moved

    async def connections(self) -> dict[PeerId, list[Multiaddr]]:
        return {peer_id: [parsed(path) for path in paths] for peer_id, paths in self.paths.items()}

    async def connected_addresses(self) -> dict[PeerId, list[str]]:
        return {peer_id: paths for peer_id, paths in self.paths.items() if peer_id in SEEDS}

    async def disconnect(self, peer_id: PeerId) -> None:
        self.redials.append((now(), peer_id))

    async def open_stream(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> Stream:
        self.on_redial(peer_id)
        raise PeerUnreachable(peer_id, "does not answer probes")


class Scene:
    """One path manager under virtual time."""

    def __init__(self) -> None:
        self.host = ToldHost()
        self.members = [make_record(seed, role="seed", state="serving") for seed in SEEDS]
        self.events: list[Event] = []
        self.told: list[tuple[bool, bool]] = []
        self.asked: list[PeerId] = []
        self.answer: DialBack | Busy = DialBack(failed=((OUTSIDE, "nobody answered"),))
        self.answers: dict[PeerId, DialBack | Busy] = {}
        """Of those that find something else."""
        self.relaying: list[Relaying | LocalFault] = []
        self.uses_relays, self.relays = True, False
        self.announce: tuple[str, ...] = ()

    async def dial_back(self, member: PeerId, addresses: list[str]) -> DialBack:
        self.asked.append(member)
        assert addresses == [address for address in self.host.own if "p2p-circuit" not in address]
        answer = self.answers.get(member, self.answer)
        if isinstance(answer, Busy):
            raise answer
        return answer

    async def check_relay(self, addresses: Sequence[str]) -> Relaying:
        assert addresses == ["/ip4/127.0.0.1/tcp/4001"], "the router may not lead back to where it came from"
        found = self.relaying.pop(0)
        if isinstance(found, LocalFault):
            raise found
        return found

    def play(self, script: Callable[[Scene], Awaitable[None]]) -> None:
        async def main() -> None:
            paths = Paths(
                cast(Any, self.host),
                lambda: self.members,
                self.dial_back,
                self.check_relay,
                lambda *verdict: self.told.append(verdict),
                lambda fact: self.events.append(Event(now(), ME, fact)),
                now,
                random.Random(1),
                uses_relays=self.uses_relays,
                relays=self.relays,
                announce=self.announce,
            )
            running = asyncio.ensure_future(paths.run())
            try:
                await script(self)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

        run_virtual(main())

    def kinds(self) -> list[type[Fact]]:
        return [type(event.fact) for event in self.events if not isinstance(event.fact, MemberChanged)]

    def paths_to(self, peer_id: PeerId) -> list[str]:
        return [
            event.fact.path
            for event in self.events
            if isinstance(event.fact, MemberChanged) and event.fact.remote == peer_id
        ]


async def pause(seconds: float = 3 * TICK_SECONDS) -> None:
    await asyncio.sleep(seconds)


def test_who_cannot_be_dialled_goes_behind_seeds() -> None:
    scene = Scene()

    async def script(scene: Scene) -> None:
        await pause()
        assert len(scene.asked) == 2, "one member's word is not enough where another can be asked"
        (found,) = [event.fact for event in scene.events if isinstance(event.fact, ReachabilityFound)]
        assert (found.reachable, found.addresses) == (False, (OUTSIDE,))
        ((options, announce),) = scene.host.changes
        assert (options.reachability, options.relays_for_others, announce) == ("private", False, [])
        assert len(options.trusted_relays) == 3
        assert scene.told[-1] == (False, False)
        scene.host.own = [through(1, ME)]
        await pause()
        assert scene.kinds() == [ReachabilityFound, RelayChanged]
        # And nothing more while it stays so.
        await pause(CHECK_SECONDS / 2)
        assert scene.kinds() == [ReachabilityFound, RelayChanged]
        assert len(scene.host.changes) == 1

    scene.play(script)


def test_without_permission_no_relay_is_used() -> None:
    scene = Scene()
    scene.uses_relays = False

    async def script(scene: Scene) -> None:
        await pause(CHECK_SECONDS + 60)
        assert scene.host.changes == []
        assert scene.kinds() == [ReachabilityFound]
        assert len(scene.asked) == 4, "it asks again after half an hour"

    scene.play(script)


def test_a_lost_relay_is_told_once_and_replaced() -> None:
    scene = Scene()

    async def script(scene: Scene) -> None:
        await pause()
        first = scene.host.options.trusted_relays
        scene.host.own = [through(1, ME)]
        await pause()
        # The address is still shown, but its relay is not connected any more.
        del scene.host.paths[SEEDS[0]]
        scene.members = scene.members[1:]
        await pause(RELAY_SECONDS + 3 * TICK_SECONDS)
        assert scene.kinds() == [ReachabilityFound, RelayChanged, RelayChanged]
        assert len(scene.host.changes) == 2
        second = scene.host.options.trusted_relays
        assert second
        assert set(second) != set(first)
        await pause(RELAY_SECONDS + 3 * TICK_SECONDS)
        assert scene.kinds().count(RelayChanged) == 2
        assert len(scene.host.changes) >= 3, "the next ones are tried as long as none takes this peer in"
        scene.host.own = [through(2, ME)]
        await pause()
        assert scene.kinds()[-1] is RelayChanged

    scene.play(script)


def test_a_forwarded_port_that_nobody_knew_of_is_announced() -> None:
    scene = Scene()
    scene.answer = DialBack(reached=(OUTSIDE,))

    async def script(scene: Scene) -> None:
        await pause()
        ((options, announce),) = scene.host.changes
        assert options.reachability == "unknown"
        assert announce == [OUTSIDE, f"{INSIDE}/p2p/{ME}"]
        assert scene.kinds() == [ReachabilityFound]
        assert scene.told[-1] == (True, True)

    scene.play(script)


STRANGERS = f"/ip4/9.9.9.9/tcp/4001/p2p/{ME}"


def in_networks_of_their_own(scene: Scene) -> Scene:
    scene.host.paths = {seed: [f"/ip4/8.{number}.8.8/tcp/4001"] for number, seed in enumerate(SEEDS)}
    return scene


@pytest.mark.parametrize("honest", [DialBack(reached=(OUTSIDE,)), DialBack(failed=((OUTSIDE, "nobody answered"),))])
@pytest.mark.parametrize("claim", [STRANGERS, INSIDE])
@pytest.mark.parametrize("liar", range(4))
def test_one_liar_tells_nobody_where_they_can_be_dialled(liar: int, claim: str, honest: DialBack) -> None:
    scene = in_networks_of_their_own(Scene())
    scene.answer, scene.answers = honest, {SEEDS[liar]: DialBack(reached=(claim,))}

    async def script(scene: Scene) -> None:
        await pause()
        announced = [address for _, announce in scene.host.changes for address in announce or ()]
        assert claim not in announced
        assert (OUTSIDE in announced) == bool(honest.reached)
        (found,) = [event.fact for event in scene.events if isinstance(event.fact, ReachabilityFound)]
        assert found.reachable == bool(honest.reached)

    scene.play(script)


def test_a_neighbour_at_home_does_not_tell_whether_others_get_through_the_router() -> None:
    scene = Scene()
    neighbour = named(20)
    scene.answers = {neighbour: DialBack(reached=(INSIDE,))}
    seeds, scene.members = scene.members, [make_record(neighbour, role="trainer")]
    paths_to_seeds, scene.host.paths = scene.host.paths, {neighbour: ["/ip4/192.168.1.7/tcp/4001"]}

    async def script(scene: Scene) -> None:
        await pause()
        assert scene.told[-1] == (True, True)
        assert scene.asked == [neighbour]
        scene.members, scene.host.paths = [*scene.members, *seeds], scene.host.paths | paths_to_seeds
        await pause()
        assert scene.told[-1] == (False, True)  # the neighbour is the only trainer, and it is near
        assert scene.host.options.reachability == "private"
        assert neighbour not in scene.asked[1:]

    scene.play(script)


def test_keys_in_one_network_are_one_voice() -> None:
    scene = Scene()  # whose members are in one network
    homes = [named(20), named(21)]
    scene.members += [make_record(home, role="trainer") for home in homes]
    scene.host.paths |= {home: [f"/ip4/{11 + number}.8.8.8/tcp/4001"] for number, home in enumerate(homes)}
    scene.answer = DialBack(reached=(STRANGERS,))
    scene.answers = dict.fromkeys(homes, DialBack(reached=(OUTSIDE,)))

    async def script(scene: Scene) -> None:
        await pause()
        announced = [address for _, announce in scene.host.changes for address in announce or ()]
        assert OUTSIDE in announced
        assert STRANGERS not in announced

    scene.play(script)


def test_a_member_that_is_busy_all_the_time_or_gone_is_not_waited_for() -> None:
    scene = in_networks_of_their_own(Scene())
    scene.members = scene.members[:2]
    scene.answer, scene.answers = DialBack(reached=(OUTSIDE,)), {SEEDS[1]: Busy(SEEDS[1], "measures with others now")}

    async def script(scene: Scene) -> None:
        await pause()
        assert scene.kinds() == []
        await pause(15)
        assert scene.kinds() == [ReachabilityFound]
        ((_, announce),) = scene.host.changes
        assert announce == [OUTSIDE, f"{INSIDE}/p2p/{ME}"]

    scene.play(script)


@pytest.mark.parametrize(
    ("found", "change_faults", "own_relay", "sentence"),
    [
        (["limited", "limited", "full"], [], "full", "This peer relays for members that no other member can dial."),
        (["limited"] * MAX_RELAY_STARTS, [], "limited", "128 KiB"),
        # As on a machine that is busy with its start: the path manager goes on.
        (
            [LocalFault("no daemon came up"), "full"],
            [LocalFault("the daemon is not back")],
            "full",
            "relays for members",
        ),
    ],
    ids=["until it lets enough pass", "always limited", "cannot be tried at first"],
)
def test_a_seed_starts_its_daemon_again_until_its_relay_lets_enough_pass_and_says_whether_it_does(
    found: list[Relaying | LocalFault], change_faults: list[LocalFault], own_relay: str, sentence: str
) -> None:
    scene, num_starts = Scene(), len(found)
    scene.relays, scene.relaying, scene.host.change_faults = True, list(found), list(change_faults)
    scene.host.own = [OUTSIDE]
    scene.answer = DialBack(reached=(OUTSIDE,))

    async def script(scene: Scene) -> None:
        await pause(10.0)
        if own_relay == "full" and not change_faults:
            assert [options.reachability for options, _ in scene.host.changes] == ["public"] * num_starts
        assert all(options.relays_for_others for options, _ in scene.host.changes)
        (checked,) = [
            event.fact for event in scene.events if isinstance(event.fact, RelayChanged) and event.fact.own_relay
        ]
        assert checked.own_relay == own_relay
        assert sentence in checked.sentence()
        assert ReachabilityFound in scene.kinds()

    scene.play(script)


def test_on_one_machine_nobody_is_asked() -> None:
    scene = Scene()
    scene.host.paths = {seed: ["/ip4/127.0.0.1/tcp/4001"] for seed in SEEDS}

    async def script(scene: Scene) -> None:
        await pause(60)
        assert scene.asked == []
        assert scene.events == []
        assert scene.told[-1] == (True, True)

    scene.play(script)


def with_home(scene: Scene) -> Scene:
    """Another home that nobody can dial either, which a relay leads to."""
    scene.members = [*scene.members, make_record(HOME, role="trainer", reachable=False)]
    scene.host.paths[HOME] = [through(1, HOME)]
    return scene


def test_a_hole_is_tried_for_while_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hole_punching, "PUNCH_AGAIN_SECONDS", AGAIN_SECONDS)
    scene = with_home(Scene())

    def punch(peer_id: PeerId) -> None:
        if len(scene.host.redials) == 2:
            scene.host.paths[HOME] = ["/ip4/9.9.9.9/tcp/4001", through(1, HOME)]

    scene.host.on_redial = punch

    async def script(scene: Scene) -> None:
        await pause(PUNCH_AFTER_SECONDS[-1] + 10)
        assert [peer_id for _, peer_id in scene.host.redials] == [HOME, HOME], "the other side had the second turn"
        assert scene.paths_to(HOME) == ["relayed", "punched"]
        assert scene.told[-1] == (False, True), "who has a path to every trainer can reduce for them"
        await pause(2 * AGAIN_SECONDS)
        assert len(scene.host.redials) == 2

    scene.play(script)


def test_nobody_hangs_up_while_something_moves_and_after_three_tries_only_after_a_long_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hole_punching, "PUNCH_AGAIN_SECONDS", AGAIN_SECONDS)
    scene = with_home(Scene())

    async def script(scene: Scene) -> None:
        for _ in range(60):
            scene.host.moved += 1000
            await asyncio.sleep(1.0)
        assert scene.host.redials == []
        await pause(PUNCH_AFTER_SECONDS[-1] + 10)
        tries = len(scene.host.redials)
        assert tries == 2
        await pause(AGAIN_SECONDS / 2)
        assert len(scene.host.redials) == tries
        await pause(2 * AGAIN_SECONDS)
        assert tries < len(scene.host.redials) <= tries + 2
        assert scene.paths_to(HOME) == ["relayed"]
        assert scene.told[-1] == (False, False)

    scene.play(script)
