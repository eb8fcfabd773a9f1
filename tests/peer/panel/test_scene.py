"""Scene, news, checklist and keys: pure folds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dht.ground.host import PeerId
from dht.identity.speakable import speakable_name
from dht.records.evaluation import Evaluation
from peer.events.anchor_events import Fetched
from peer.events.lone_rounds import LONE_ROUNDS
from peer.events.path_events import ReachabilityFound
from peer.events.peer_events import Evaluated, Event, JoinedRun, MemberChanged, RefusedPeer, StateServed, SwarmContact
from peer.panel.checklist import WAITING_FIRST, Checklist, text_of
from peer.panel.key_bindings import PASTED, Controls
from peer.panel.news import ARRIVAL_SECONDS
from peer.panel.scene import SETTLE_SECONDS, Scene, scene_of, with_event, with_note, with_update
from peer.panel.screens import news_lines, reached
from peer.panel.updates import Action, LineLimits, LoadingStep
from peer.view.swarm_seen import SwarmSeen
from tests.kit.panels import JO, KIRAN, ME, NOW, RUN_ID, committed, progress

JOINED = Event(1.0, ME, JoinedRun(RUN_ID, "cpu", 860_000, (0, 0)))


def after(*events: Event) -> Scene:
    scene = scene_of(RUN_ID, LineLimits(), is_seed=False)
    for event in events:
        scene = with_event(scene, event)
    return scene


def said(scene: Scene) -> list[str]:
    return [
        one.text if one.remote is None else one.text.replace("{who}", scene.name_of(one.remote)) for one in scene.news
    ]


def test_news_are_about_people_and_not_about_rounds() -> None:
    scene = after(
        Event(0.0, ME, MemberChanged(JO)),
        JOINED,
        Event(2.0, ME, MemberChanged(KIRAN)),
        committed(3.0),
        progress(4.0, 90_000, 2.5),
        progress(5.0, 250_000, 2.4),
        Event(6.0, ME, Evaluated(2.5, 4)),
        Event(7.0, ME, Evaluated(2.6, 5)),
        Event(8.0, ME, Evaluated(2.4, 6)),
        Event(8.5, ME, Evaluated(2.3999, 7)),
        Event(9.0, ME, MemberChanged(KIRAN, "it said goodbye")),
        Event(9.5, ME, MemberChanged(JO, "its record expired")),
        Event(10.0, ME, SwarmContact("lost", 60.0)),
        Event(11.0, ME, SwarmContact("found", 60.0, 2)),
        progress(30.0, 250_000, 2.4),
    )
    scene = with_update(scene, SwarmSeen(at=12.0, names=((KIRAN, "Kiran"),)))
    assert said(scene) == [
        "You are in: training on cpu, with 1 other here",
        "First validation loss: 2.500 nats per token",
        "Best validation loss: 2.400 nats per token",
        "Kiran left",
        "No other machine answers; training continues alone",
        "Found the others again: 2 of them",
    ]
    assert scene.own.confirmed_rounds == 1
    assert (scene.own.first_evaluation, scene.own.best_evaluation) == (Evaluation(2.5, 4), Evaluation(2.3999, 7))
    assert [one.at for one in scene.news if "Best validation loss" in one.text] == [8.0], (
        "the same in three digits is no news"
    )


def test_who_is_reached_at_a_private_address_is_not_told_to_be_reached_from_outside() -> None:
    for address, told in (
        ("/ip4/192.168.1.7/tcp/4001", "from the same private network"),
        ("/ip4/8.8.8.8/tcp/4001", "from outside ✓"),
    ):
        scene = after(JOINED, Event(2.0, ME, ReachabilityFound(KIRAN, True, (address,))))
        assert reached(scene, 3.0).plain.startswith(told)


def test_rounds_before_others_came_are_nobodys_fault() -> None:
    alone = after(JOINED, *(committed(2.0 + number, (ME,)) for number in range(20)))
    assert alone.lone_rounds == 20
    met = with_update(alone, SwarmSeen(30.0, num_others=1, num_other_trainers=1))
    assert met.lone_rounds == 0
    for number in range(LONE_ROUNDS):
        met = with_event(met, committed(31.0 + number, (ME,)))
    assert met.lone_rounds == 0  # it may still be on its way into its first round
    later = with_update(met, SwarmSeen(30.0 + SETTLE_SECONDS, num_others=1, num_other_trainers=1))
    assert later.lone_rounds == LONE_ROUNDS


def test_a_refusal_is_news_only_while_somebody_is_left_out() -> None:
    refused = RefusedPeer(KIRAN, "late", kinds=("late",))
    assert said(after(JOINED, Event(2.0, ME, refused)))[1:] == []
    out = Event(3.0, ME, replace(refused, left_out_until=99.0))
    assert "is left out of rounds for a while" in said(after(JOINED, out))[-1]


def test_the_checklist_says_what_it_waits_for() -> None:
    steps = Checklist.of(is_seed=False).with_step(LoadingStep("key", "Ada", is_done=True))
    waits = steps.after(Event(1.0, ME, SwarmContact("waiting", 12.0, reason="nobody answers")))
    (run,) = (line for line in waits.lines if line.name == "run")
    assert (text_of(run), run.is_waiting, run.is_done) == ("nobody answers (12 s so far)", True, False)
    found = waits.with_step(LoadingStep("run", "found", is_done=True))
    # What comes late does not take a tick away.
    late = found.after(Event(2.0, ME, SwarmContact("waiting", 13.0, reason="nobody answers")))
    assert late == found
    fetching = found.after(Event(2.0, ME, Fetched(43, 43.0, total_bytes=100)))
    assert [text_of(line) for line in fetching.lines if line.name == "state"] == ["43.0% of 100 B, 57 s left"]
    assert fetching.after(JOINED).is_over
    assert not fetching.is_over


def typed(controls: Controls, *keys: str) -> tuple[Controls, list[Action]]:
    actions = []
    for key in keys:
        controls, action = controls.press(key)
        actions += [] if action is None else [action]
    return controls, actions


def test_keys_turn_pages_and_ask_for_things() -> None:
    assert [typed(Controls(), key)[0].page for key in "?ih"] == ["help", "addresses", "help"]
    assert typed(Controls(), "i", "i")[0].page == typed(Controls(), "?", "escape")[0].page == "main"
    assert typed(Controls(), "q", "p", "x") == (Controls(), ["leave", "rest"])
    assert typed(Controls(can_rest=False), "p")[1] == []
    assert typed(Controls(), f"{PASTED}q", f"{PASTED}d") == (Controls(), [])


def test_limits_are_asked_for_one_after_the_other() -> None:
    assert typed(Controls(), "l", *"10", "enter", *"2.5", "enter") == (Controls(), [LineLimits(10.0, 2.5)])
    assert typed(Controls(), "l", "enter", *"4", "backspace", "enter") == (Controls(), [LineLimits(None, None)])
    assert typed(Controls(), "l", "1", "escape", "enter") == (Controls(), [])
    # Whatever is typed is seen, and q among it does not leave; nothing is made of what is not a number.
    asked = Controls().press("l")[0].press("q")[0].question
    assert asked is not None
    assert asked.text(79) == "Enter: no limit; Esc: back. Max Mbit/s to send: q_"
    assert typed(Controls(), "l", f"{PASTED}5\n", "enter", " ", "enter")[1] == [LineLimits(5.0, None)]
    for wrong in ("0.1", "1.2.3", "00", "5x", "3 -2", "1_0", "nan", "1e3", "2,500", "1,2,3", "1000001"):
        asked, actions = typed(Controls(), "l", *wrong, "enter")
        assert actions == []
        assert asked.question is not None
        assert f"{wrong}: expected 0.2 to 1000000, such as 10, or none." in asked.question.text(90)


def test_whoever_changes_one_limit_keeps_the_other() -> None:
    now = LineLimits(10.0, 1_000_000.0)

    def answered(*keys: str) -> Action | None:
        controls, action = Controls(), None
        for key in ("l", *keys):
            controls, action = controls.press(key, now)
        return action

    assert answered("enter", *"3", "enter") == LineLimits(10.0, 3.0)
    assert answered(*"0,5", "enter", "enter") == LineLimits(0.5, 1_000_000.0)
    assert answered("enter", *"none", "enter") == LineLimits(10.0, None)
    assert answered("0", "enter", *"None", "enter") == LineLimits()
    first = Controls().press("l", now)[0]
    second = first.press("enter", now)[0]
    told = [one.question.text(79) for one in (first, second) if one.question is not None]
    assert told[0] == "Enter keeps it, none removes it; Esc: back. Max Mbit/s to send (now 10): _"
    assert told[1] == "Max Mbit/s to receive (now 1000000): _", "what is asked, where there is no room for more"


def test_names_of_strangers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.panel.scene.MAX_NAMES", 3)
    scene = after(JOINED)
    for batch in range(4):
        names = tuple((PeerId(f"peer-{batch}-{n}"), "x") for n in range(2))
        scene = with_update(scene, SwarmSeen(at=NOW, names=names))
        assert len(scene.names) <= 3


def test_news_tell_who_came_and_who_left_and_nothing_of_a_member_that_is_unresponsive_for_a_while() -> None:
    scene = after(JOINED, Event(2.0, ME, MemberChanged(KIRAN)))
    assert said(scene)[1:] == [f"{speakable_name(KIRAN)} is here"]
    silent = with_event(scene, Event(30.0, ME, MemberChanged(KIRAN, "its record expired")))
    back = with_event(silent, Event(40.0, ME, MemberChanged(KIRAN)))
    assert said(back) == said(scene)
    assert said(with_event(back, Event(50.0, ME, MemberChanged(KIRAN, "it said goodbye"))))[1:] == [
        f"{speakable_name(KIRAN)} left"
    ]


def test_who_was_there_before_did_not_join() -> None:
    scene = after(JOINED, Event(1.0 + ARRIVAL_SECONDS - 0.1, ME, MemberChanged(KIRAN)))
    assert said(scene)[-1].endswith("is here")
    assert said(with_event(scene, Event(1.0 + ARRIVAL_SECONDS, ME, MemberChanged(JO))))[-1].endswith("joined")


def test_who_only_looks_at_a_seed_is_no_news() -> None:
    seed = Event(1.0, ME, JoinedRun(RUN_ID, "seed", 860_000, (0, 0)))
    scene = after(seed, Event(2.0, ME, StateServed(KIRAN, 256)))
    took = Event(3.0, ME, StateServed(KIRAN, 543_000))
    assert said(with_event(scene, took)) == said(scene) == said(after(seed)), "a page, or an export"
    newcomer = with_event(with_event(scene, took), Event(4.0, ME, MemberChanged(KIRAN)))
    assert said(newcomer)[-1].endswith(" joined with model parts from this machine")
    assert said(with_event(newcomer, replace(took, at=5.0)))[-1].endswith(" downloaded 543 kB of the model from here")
    elsewhere = after(seed, Event(44.0, ME, MemberChanged(KIRAN)))
    assert said(elsewhere)[-1].endswith(" joined")


def test_a_new_runs_seed_waits_for_a_trainer_until_somebody_is_here() -> None:
    fresh = Checklist.of(is_seed=True).with_step(LoadingStep("state", WAITING_FIRST))
    assert text_of(fresh.lines[-1]) == "waiting for the first trainer"
    assert text_of(fresh.after(Event(1.0, ME, MemberChanged(JO))).lines[-1]).startswith("asking members")


def test_a_warning_stays_on_top_of_what_comes_after_it() -> None:
    scene = with_note(after(JOINED), "The disk is full", 2.0)
    scene = with_event(scene, Event(3.0, ME, MemberChanged(KIRAN)))
    assert "The disk is full" in news_lines(scene, 80, 1)[0].plain
    scene = with_event(scene, Event(2000.0, ME, MemberChanged(JO)))
    assert "joined" in news_lines(scene, 80, 1)[0].plain
