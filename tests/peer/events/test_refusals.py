"""What was refused, per remote and kind: events, and whom the panel calls left out."""

from __future__ import annotations

from averaging.trust.claim_guard import Guard, GuardPorts
from averaging.trust.exclusions import FIRST_SECONDS, STRIKES
from dht.ground.host import PeerId
from peer.events.event_log import from_json, to_json
from peer.events.peer_events import Event, JoinedRun, PartRestarted, RefusedPeer
from peer.mailbox.mailbox import Mailbox
from peer.network.node.reporter import REFUSAL_SECONDS, Reporter
from peer.view.own_view import MAX_LEFT_OUT, OwnView, own_view_after

ME, LIAR, OTHER = (PeerId(f"12D3KooW{name * 10}") for name in "mxo")


class Scene:
    """A guard whose reports become events, with one clock for everything."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events: list[Event] = []
        mailbox = Mailbox.in_process((8,), (32,))
        self.reporter = Reporter(ME, mailbox, lambda: self.now, lambda: self.now, self.events.append)
        self.guard = Guard(ME, 4, GuardPorts(lambda: self.now, self.reporter.refused))  # type: ignore[arg-type]

    def refusals(self) -> list[RefusedPeer]:
        return [event.fact for event in self.events if isinstance(event.fact, RefusedPeer)]


def refused(at: float, remote: PeerId = LIAR, **fields: object) -> Event:
    named = {"kinds": ("malformed",), **fields}
    return Event(at, ME, RefusedPeer(remote=remote, reason="sent nonsense", **named))  # type: ignore[arg-type]


def test_events_name_the_kinds_and_say_until_when_it_is_left_out() -> None:
    scene = Scene()
    for number in range(STRIKES):
        scene.now += REFUSAL_SECONDS
        scene.guard.blame(LIAR, "undecodable" if number else "implausible", "sent nan", number)
        scene.guard.blame(OTHER, "misfit", "sent another shard", number)
    *_, exclusion = [fact for fact in scene.refusals() if fact.remote == LIAR]
    assert set(exclusion.kinds) == {"implausible", "undecodable"}
    assert exclusion.left_out_until == scene.now + FIRST_SECONDS
    last = [fact for fact in scene.refusals() if fact.remote == OTHER][-1]
    assert (last.kinds, last.left_out_until) == (("misfit",), None)
    assert from_json(to_json(Event(scene.now, ME, exclusion))).fact == exclusion


def test_a_flood_is_told_rarely() -> None:
    scene = Scene()
    for number in range(40):
        scene.guard.blame(LIAR, "misfit", "sent another shard", number)
    assert len(scene.refusals()) == 1
    scene.now += REFUSAL_SECONDS
    for number in range(40, 80):
        scene.guard.blame(LIAR, "misfit", "sent another shard", number)
    assert len(scene.refusals()) == 2


def test_what_a_remote_does_for_the_first_time_is_said_at_once() -> None:
    scene = Scene()
    for number in range(4):
        scene.guard.blame(LIAR, "misfit", "sent another shard", number)
    scene.guard.blame(LIAR, "implausible", "claims too much")
    first, second = scene.refusals()
    assert first.kinds == ("misfit",)
    assert (second.kinds, second.reason) == (("implausible", "misfit"), "claims too much")


def test_who_is_left_out_stays_so_until_the_network_process_begins_anew() -> None:
    own = OwnView()
    for number in range(MAX_LEFT_OUT + 9):
        own = own_view_after(own, refused(1.0, PeerId(f"12D3KooWpeer{number:03}"), left_out_until=60.0 + number))
    own = own_view_after(own, refused(2.0))
    assert len(own.left_out) == MAX_LEFT_OUT
    assert own.left_out[0] == (PeerId(f"12D3KooWpeer{MAX_LEFT_OUT + 8:03}"), 60.0 + MAX_LEFT_OUT + 8)
    assert own_view_after(own, Event(1.0, ME, PartRestarted("network", "it died"))).left_out == ()
    assert own_view_after(own, Event(1.0, ME, JoinedRun("demo.abc", "cpu", 8, (0,)))).left_out == ()
