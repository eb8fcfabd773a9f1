"""What was refused, per remote and kind, as the owner sees it: events, panel, log, `peer status`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from averaging.trust.claim_guard import Guard, GuardPorts
from averaging.trust.exclusions import FIRST_SECONDS, STRIKES
from dht.ground.host import PeerId
from dht.identity.speakable import speakable_name
from peer.events.event_log import from_json, to_json
from peer.events.log_tail import LOG_TAIL_BYTES
from peer.events.lone_rounds import LONE_ROUNDS
from peer.events.peer_events import Event, JoinedRun, PartRestarted, RefusedPeer
from peer.events.refusals import MAX_REMOTES, with_refusal
from peer.events.rotating_log import LineLog, earlier_log
from peer.mailbox.mailbox import Mailbox
from peer.network.node.refusal_reports import REFUSAL_SECONDS
from peer.network.node.reporter import Reporter
from peer.observe.status import local_facts, local_lines
from peer.run_folders import keep_name
from tests.kit.peer_events import committed

ME, LIAR, OTHER = (PeerId(f"12D3KooW{name * 10}") for name in "mxo")


class Scene:
    """A guard whose reports become events, with one clock for everything."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events: list[Event] = []
        mailbox = Mailbox.in_process((8,), (32,))
        self.reporter = Reporter(ME, mailbox, lambda: self.now, lambda: self.now, self.events.append)
        self.guard = Guard(ME, 4, GuardPorts(lambda: self.now, self.reporter.refusals.add))  # type: ignore[arg-type]

    def refusals(self) -> list[RefusedPeer]:
        return [event.fact for event in self.events if isinstance(event.fact, RefusedPeer)]


def refused(at: float, remote: PeerId = LIAR, **fields: object) -> Event:
    named = {"kinds": ("malformed",), "num_times": (1,), **fields}
    return Event(at, ME, RefusedPeer(remote=remote, reason="sent nonsense", **named))  # type: ignore[arg-type]


def joined(at: float) -> Event:
    return Event(at, ME, JoinedRun(run_id="demo.abc", device="cpu", num_parameters=8, versions=(0,)))


def test_events_count_per_remote_and_kind_and_say_until_when_it_is_left_out() -> None:
    scene = Scene()
    for number in range(STRIKES):
        scene.now += REFUSAL_SECONDS
        scene.guard.blame(LIAR, "undecodable" if number else "implausible", "sent nan", number)
        scene.guard.blame(OTHER, "misfit", "sent another shard", number)
    *_, exclusion = [fact for fact in scene.refusals() if fact.remote == LIAR]
    assert dict(zip(exclusion.kinds, exclusion.num_times, strict=True)) == {"implausible": 1, "undecodable": 2}
    assert exclusion.left_out_until == scene.now + FIRST_SECONDS
    last = [fact for fact in scene.refusals() if fact.remote == OTHER][-1]
    assert (last.kinds, last.num_times, last.left_out_until) == (("misfit",), (STRIKES,), None)
    assert from_json(to_json(Event(scene.now, ME, exclusion))).fact == exclusion


def test_a_flood_is_told_rarely_and_counted_in_full() -> None:
    scene = Scene()
    for number in range(40):
        scene.guard.blame(LIAR, "misfit", "sent another shard", number)
    assert [fact.num_times for fact in scene.refusals()] == [(1,)]
    scene.reporter.progress()
    assert len(scene.refusals()) == 1
    scene.now += REFUSAL_SECONDS
    for _ in range(3):
        scene.reporter.progress()
    assert [fact.num_times for fact in scene.refusals()] == [(1,), (40,)]


def test_what_a_remote_does_for_the_first_time_is_said_at_once() -> None:
    scene = Scene()
    for number in range(4):
        scene.guard.blame(LIAR, "misfit", "sent another shard", number)
    scene.guard.blame(LIAR, "implausible", "claims too much")
    first, second = scene.refusals()
    assert (first.kinds, first.num_times) == (("misfit",), (1,))
    assert (second.kinds, second.num_times, second.reason) == (("implausible", "misfit"), (1, 4), "claims too much")


def test_books_are_bounded_and_begin_anew_with_another_network_process() -> None:
    known: tuple = ()
    for number in range(MAX_REMOTES + 9):
        known = with_refusal(known, refused(float(number), PeerId(f"12D3KooWpeer{number:03}")))
    assert len(known) == MAX_REMOTES
    assert known[0].remote.endswith(f"{MAX_REMOTES + 8:03}")
    assert with_refusal(known, Event(1.0, ME, PartRestarted("network", "it died"))) == ()
    assert with_refusal(known, joined(1.0)) == ()
    # Events of earlier software count nothing.
    assert with_refusal(known, Event(0.0, ME, RefusedPeer(remote=LIAR, reason="x"))) == known


def test_who_is_left_out_stays_so_through_later_refusals() -> None:
    known = with_refusal((), refused(10.0, left_out_until=70.0))
    (one,) = with_refusal(known, refused(20.0, num_times=(4,)))
    assert one.is_left_out(69.0)
    assert not one.is_left_out(70.0)
    assert one.sentence(60.0).endswith("broke the protocol 4 times; left out for another 10 s")
    assert one.sentence(80.0).endswith("broke the protocol 4 times")


def log_of(path: Path, *events: Event) -> Path:
    log = LineLog(path, lambda sentence: None)
    for event in events:
        log.append(to_json(event))
    log.close()
    return path


def test_status_shows_what_the_peer_on_this_machine_refused(tmp_path: Path) -> None:
    path = log_of(tmp_path / "events.jsonl", refused(1.0, OTHER), joined(5.0), refused(7.0, left_out_until=67.0))
    facts = local_facts(path, 17.0)
    assert facts == {
        "peer_id": ME,
        "last_event_at": 7.0,
        "refusals": [{"peer_id": LIAR, "counts": {"malformed": 1}, "last_at": 7.0, "left_out_until": 67.0}],
    }
    json.dumps(facts)
    head, line = local_lines(path, 17.0)
    assert "as it said 10 s ago" in head
    assert line.endswith("broke the protocol once; left out for another 50 s")
    assert local_facts(path, 100.0)["refusals"][0]["left_out_until"] is None  # type: ignore[index]


def test_status_says_that_the_peer_on_this_machine_trains_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lone = [replace(committed(float(at), (ME,)), peer_id=ME) for at in range(LONE_ROUNDS)]
    path.write_text("".join(f"{to_json(event)}\n" for event in [joined(0.0), *lone]))
    name = speakable_name(ME)
    said = f"The peer on this machine, {name}, as it said 3 s ago, shared none of the last 8 rounds."
    assert local_lines(path, LONE_ROUNDS + 2.0) == [said]
    keep_name(tmp_path, "Zoë")
    assert local_lines(path, LONE_ROUNDS + 2.0) == [said.replace(name, f"Zoë ({name})")]
    path.write_text("".join(f"{to_json(event)}\n" for event in [*lone, joined(0.0)]))
    assert local_lines(path, LONE_ROUNDS + 2.0) == []


def test_status_says_nothing_without_a_log_and_a_sentence_when_it_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert local_facts(tmp_path / "none.jsonl", 0.0) is None
    assert local_lines(log_of(tmp_path / "calm.jsonl", joined(1.0)), 2.0) == []
    assert capsys.readouterr().err == ""
    assert local_facts(tmp_path, 0.0) is None  # a folder
    assert "cannot be read" in capsys.readouterr().err


def test_of_a_long_log_the_end_is_read_and_broken_lines_are_passed_over(tmp_path: Path) -> None:
    path = log_of(tmp_path / "events.jsonl", refused(1.0, OTHER))
    with path.open("ab") as file:
        file.write(b"x" * LOG_TAIL_BYTES + b"\n" + b"{}\n\xff\n")
    log_of(path, refused(3.0, num_times=(2,)))
    assert counts(path) == {LIAR: 2}


def test_a_log_that_has_just_begun_anew_is_read_with_the_one_before_it(tmp_path: Path) -> None:
    path = log_of(tmp_path / "events.jsonl", joined(1.0), refused(2.0, num_times=(2,)))
    path.rename(earlier_log(path))
    assert local_facts(path, 3.0) is None  # no session has written here yet
    log_of(path, refused(3.0, OTHER))
    assert counts(path) == {LIAR: 2, OTHER: 1}


def counts(path: Path) -> dict[PeerId, int]:
    facts = local_facts(path, 3.0)
    assert facts is not None
    return {one["peer_id"]: sum(one["counts"].values()) for one in facts["refusals"]}
