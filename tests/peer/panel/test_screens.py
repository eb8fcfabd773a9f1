"""Pictures at every size: golden files, nothing too wide or too high, no cut sentences, letters alone where asked."""

from __future__ import annotations

import io
import time
import xml.etree.ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from averaging.rounds.round_facts import Fact
from peer.events.lone_rounds import LONE_ROUNDS
from peer.events.peer_events import (
    CheckpointFailed,
    CheckpointSaved,
    Event,
    JoinedRun,
    LeftRun,
    MemberChanged,
    PartRestarted,
    RefusedPeer,
    RunChanged,
    SwarmContact,
)
from peer.panel.key_bindings import Page
from peer.panel.live_panel import farewell
from peer.panel.scene import SETTLE_SECONDS, Scene, with_event, with_note, with_update
from peer.panel.screen_painter import END_OF_LINE, Painter
from peer.panel.screens import sparkline
from peer.panel.sentences import doing, goodbye, health, summary
from peer.panel.text_lines import num_rows, part
from peer.panel.updates import Doing
from peer.view.swarm_seen import OwnAddresses, SwarmSeen
from tests.kit.panels import (
    JO,
    KIRAN,
    LINDSTROEM,
    ME,
    NOW,
    RUN_ID,
    a_beginning,
    a_wait,
    an_evening,
    committed,
    lines_of,
    progress,
    render_svg,
    states_of_a_trainer,
    text_of,
    with_own,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "panel"
PICTURE_SIZE = (92, 24)
SIZES = [(40, 12), (80, 24), (120, 40), (200, 60)]


PAGES: tuple[Page, ...] = ("help", "addresses")


@pytest.fixture(autouse=True)
def _one_time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def agrees(name: str, text: str, regenerate: bool) -> None:
    path = GOLDEN / f"{name}.txt"
    if regenerate:
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pictures_at_each_size_stay_as_they_are(width: int, height: int, regenerate_golden: bool) -> None:
    scenes = {"training": an_evening(), "seed": an_evening(is_seed=True), "loading": a_beginning(), "waiting": a_wait()}
    scenes |= states_of_a_trainer() if width <= 80 else {}
    text = "".join(f"== {name}\n{text_of(lines_of(scene, width, height))}" for name, scene in scenes.items())
    for page in PAGES if width == 80 else ():
        text += f"== {page}\n{text_of(lines_of(an_evening(), width, height, page))}"
    agrees(f"{width}x{height}", text, regenerate_golden)


def picture_of(scene: Scene) -> str:
    """As wide as one column gets."""
    return text_of(lines_of(scene, 119, 30))


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (SwarmSeen(NOW, num_others=4, num_other_trainers=3), "Trains alone: 3 others are known; none shared the last"),
        (
            SwarmSeen(NOW, num_others=1, num_other_trainers=1, num_silent_trainers=1),
            "Trains alone: 1 other is known; it shared none of the last 8 rounds; it does not answer this machine",
        ),
        (SwarmSeen(NOW, num_others=1), "No other machine trains: the last 8 rounds had one member"),
        (SwarmSeen(NOW), "No other machine trains: the last 8 rounds had one member"),
    ],
)
def test_rounds_of_one_member_are_not_called_up_to_date(seen: SwarmSeen, told: str) -> None:
    scene = with_update(an_evening(), replace(seen, at=NOW + SETTLE_SECONDS))
    for number in range(LONE_ROUNDS):
        assert told not in picture_of(scene)
        scene = with_event(scene, committed(NOW + number / 10, (ME,)))
    assert told in picture_of(scene)
    assert "up to date" not in picture_of(scene)
    assert told not in picture_of(with_event(scene, committed(NOW + 1)))


def test_only_the_first_machine_of_a_run_is_called_the_first() -> None:
    looked = SwarmSeen(NOW)
    new, late = (Event(NOW, ME, JoinedRun(RUN_ID, "cpu", 860_000, versions)) for versions in ((0, 0), (7, 7)))
    came = with_event(a_beginning(), Event(NOW, ME, MemberChanged(KIRAN)))
    for scene, told in (
        (with_update(with_event(a_beginning(), new), looked), "Your machine is the first one here"),
        (with_update(with_event(a_beginning(), late), looked), "No other machine is here now"),
        (with_update(with_event(came, new), looked), "No other machine is here now"),
        (with_event(a_beginning(), new), "Looking for the others"),
    ):
        assert told in picture_of(scene)


def test_a_seed_says_that_others_train_alone() -> None:
    scene = with_update(an_evening(is_seed=True), SwarmSeen(NOW, num_others=2, num_other_trainers=2))
    for number in range(LONE_ROUNDS):
        scene = with_event(scene, committed(NOW, ((KIRAN, JO)[number % 2],)))
    scene = with_update(scene, SwarmSeen(NOW + SETTLE_SECONDS, num_others=2, num_other_trainers=2))
    assert "2 train, but the last 8 rounds had one member each" in picture_of(scene)
    with_one = with_update(scene, SwarmSeen(NOW, num_others=1, num_other_trainers=1))
    assert "had one member" not in picture_of(with_one)


def test_the_picture_in_the_documents_is_of_this_panel(regenerate_golden: bool) -> None:
    """`pytest --regenerate-golden tests/peer/panel/test_screens.py` draws it anew."""
    path = Path(__file__).parents[3] / "docs" / "images" / "panel.svg"
    picture = render_svg(lines_of(an_evening(), *PICTURE_SIZE), PICTURE_SIZE[0])
    if regenerate_golden:
        path.write_text(picture)
    assert picture == path.read_text()
    assert xml.etree.ElementTree.fromstring(picture).tag.endswith("svg")
    assert "http://" not in picture.replace("http://www.w3.org", "").replace("http://203.0.113.7", "")


HOSTILE = "\x1b[2J[red]\u202e" + "wide \u8a9e" * 60
NEWS: list[Fact] = [
    *(
        MemberChanged(KIRAN),
        MemberChanged(KIRAN, HOSTILE),
        PartRestarted("network", HOSTILE),
        SwarmContact("lost", 60.0),
    ),
    *(RefusedPeer(KIRAN, HOSTILE, ("late",), NOW + 60), LeftRun("asked to", 1, 2, 3)),
]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(NEWS), max_size=6), st.integers(40, 220), st.integers(8, 70), st.booleans())
def test_a_picture_fits_its_terminal_and_takes_no_orders(
    facts: list[Fact], width: int, height: int, is_seed: bool
) -> None:
    scene = with_note(an_evening(is_seed=is_seed), HOSTILE, NOW)
    for fact in facts:
        scene = with_event(scene, Event(NOW, ME, fact))
    lines = lines_of(scene, width, height)
    may_be_long = ("http://", "peer join")
    for line in lines[:-1]:
        assert line.cell_len <= width or line.plain.startswith(may_be_long)
        assert not any(character in line.plain for character in "\x1b\u202e")
    if width >= 60 and height >= 24:
        assert num_rows(lines, width) <= height


def test_a_command_to_copy_has_no_break_in_it() -> None:
    lines = lines_of(an_evening(is_seed=True), 60, 24)
    (command,) = (line.plain for line in lines if line.plain.startswith("peer join"))
    assert command.endswith(f"@203.0.113.5:4001/{ME}")
    shown = text_of(lines_of(an_evening(), 50, 24, "addresses"))
    assert ME in shown
    assert an_evening().run.run_id in shown


def test_a_line_that_fills_the_terminal_keeps_its_last_letter() -> None:
    """Where the cursor stays in the last column, as xterm and Linux do it, clearing to the end takes that letter."""
    terminal = io.StringIO()
    painter = Painter(terminal, {"TERM": "xterm"})
    for sign in "abc":  # the second picture is written over the first, line by line
        painter.show([part(sign * 40), part(sign * 39), part(sign * (80 if sign == "c" else 20))], part("q"), 40, 6)
        shown = terminal.getvalue().rpartition(sign * 39)[0]
        assert sign * 40 in shown
        assert sign * 40 + END_OF_LINE not in shown
    assert "c" * 80 + "\r\n" in terminal.getvalue()


def test_markup_in_names_is_shown_and_not_obeyed() -> None:
    told = SwarmSeen(at=NOW, names=((KIRAN, "[red]Kiran[/red] \x1b[31m"),))
    scene = with_event(with_update(an_evening(), told), Event(NOW, ME, MemberChanged(KIRAN, "it said goodbye")))
    terminal = io.StringIO()
    painter = Painter(terminal, {"TERM": "xterm"})
    lines = lines_of(scene, 80, 24)
    painter.show(lines[:-1], lines[-1], 80, 24)
    assert "[red]Kiran[/red]" in terminal.getvalue()
    assert "\x1b[31m" not in terminal.getvalue()


def all_gone(scene: Scene) -> Scene:
    """Kiran and Lindström have said goodbye: no `SwarmContact` follows, and the phase stays as it was."""
    for one in (KIRAN, LINDSTROEM):
        scene = with_event(scene, Event(NOW, ME, MemberChanged(one, "it said goodbye")))
    return with_update(scene, replace(scene.swarm, at=NOW, num_others=0, num_other_trainers=0))


def sentence_of(scene: Scene) -> tuple[str, str]:
    return health(scene, NOW)


def test_that_all_have_gone_comes_before_the_goal_that_is_reached() -> None:
    at_goal = with_event(an_evening(), progress(NOW, 4_154_000, 1.929, run_tokens=2_000_000_000))
    assert sentence_of(at_goal)[0].startswith("The goal is reached")
    gone = all_gone(at_goal)
    assert sentence_of(gone) == (
        "All others have left; your machine trains alone, and others may join again",
        "yellow",
    )
    assert doing(gone) == ("training alone", "yellow")
    assert "no other machine here" not in picture_of(gone), "the sentence above tells it"
    silent = with_update(gone, replace(gone.swarm, num_silent=2))
    assert sentence_of(silent)[0].startswith("No other machine answers at the moment")
    assert doing(silent) == ("training alone", "yellow")
    back = with_update(gone, replace(gone.swarm, at=NOW + 1, num_others=1, num_other_trainers=1))
    assert doing(back) == ("training", "green")


@pytest.mark.parametrize("is_seed", [False, True])
def test_a_machine_without_a_network_says_so(is_seed: bool) -> None:
    scene = all_gone(an_evening(is_seed=is_seed))
    assert "no network" not in picture_of(scene)
    cut_off = with_update(scene, OwnAddresses(()))
    assert "This machine has no network" in picture_of(cut_off)
    assert sentence_of(cut_off)[1] == "yellow"
    assert "no network" not in picture_of(with_update(cut_off, OwnAddresses(scene.addresses)))


def test_a_seed_alone_does_its_job() -> None:
    alone = with_event(all_gone(an_evening(is_seed=True)), Event(NOW, ME, SwarmContact("lost", 60.0)))
    shown = picture_of(alone)
    assert "this seed keeps the run for new members" in shown
    assert "0 training" in shown
    assert "0 training, 0 others here" in summary(alone, NOW)
    assert sentence_of(alone)[1] != "yellow"
    assert alone.news[-1].kind == "person"


def test_a_goodbye_says_what_was_given_and_where_it_is_seen() -> None:
    left = with_event(an_evening(), Event(NOW, ME, LeftRun("asked to", 8000, 4_154_000, 135)))
    told = goodbye(left, NOW)
    work, loss = "4.15 M tokens · 135 rounds, all confirmed", "validation loss 3.397 -> 1.881 nats per token"
    assert told[0] == f"Thank you, Ada. 2 h 14 min · {work} · {loss}"
    assert told[1].startswith("Your page: http://203.0.113.7/c/12D3KooW")
    assert told[-1].startswith("Come back: peer join")
    narrow = farewell(left, NOW, 60)
    assert narrow[:3] == ["Thank you, Ada. 2 h 14 min · 4.15 M tokens", "135 rounds, all confirmed", loss]
    assert narrow[-2:] == told[1:]
    assert "135 rounds that no other machine shared" in goodbye(with_own(left, confirmed_rounds=0), NOW)[0]
    assert "135 rounds, 40 confirmed by others" in goodbye(with_own(left, confirmed_rounds=40), NOW)[0]
    back = with_own(left, earlier_tokens=4_000_000, earlier_rounds=100)
    assert goodbye(back, NOW)[0].startswith("Thank you, Ada. This session: 2 h 14 min · 154 k tokens · 35 rounds")
    assert goodbye(back, NOW)[0].endswith(" nats per token · 4.15 M tokens in all sessions")
    assert goodbye(a_wait(), NOW) == []
    assert "served 12 newcomers, 7.60 MB" in goodbye(an_evening(is_seed=True), NOW)[0]


@pytest.mark.parametrize("is_seed", [False, True])
def test_a_goodbye_after_the_runs_end_or_for_good_invites_nobody_back(is_seed: bool) -> None:
    for_good = goodbye(with_update(an_evening(is_seed=is_seed), Doing("ended for good")), NOW)
    assert for_good[0].startswith("Thank you, Ada.")
    assert not any("Come back" in line or "has ended" in line for line in for_good)
    told = goodbye(with_event(an_evening(is_seed=is_seed), Event(NOW, ME, RunChanged(end_version=7))), NOW)
    assert told[-1] == "The run starlings has ended; its owner closed it."
    assert not any("Come back" in line for line in told)


def test_a_goodbye_says_that_work_was_not_saved_until_it_is() -> None:
    failed = with_event(an_evening(), Event(NOW, ME, CheckpointFailed("no room", is_last=True)))
    assert any("is not saved" in line for line in goodbye(failed, NOW))
    saved = with_event(failed, Event(NOW, ME, CheckpointSaved("there", (1,))))
    assert not any("is not saved" in line for line in goodbye(saved, NOW))
    # And the panel's news, which said that it failed, say that it is over.
    assert any("could not be saved" in news.text for news in failed.news)
    assert [news.text for news in saved.news if news.topic == "checkpoint"] == ["Checkpoints are saved again"]
    again = with_event(saved, Event(NOW, ME, CheckpointSaved("there", (2,))))
    assert again.news == saved.news


def test_rounds_that_are_slow_in_this_run_are_no_silence() -> None:
    evening = an_evening()  # a round a minute
    assert "No exchange" not in health(evening, NOW + 270)[0]
    assert health(evening, NOW + 310)[0].startswith("No exchange has ended for 5")
    first = with_own(evening, joined_at=NOW - 5, rounds_committed=1)
    assert "No exchange" not in health(first, NOW + 110)[0]
    assert health(first, NOW + 130)[0].startswith("No exchange has ended for 2 min 10 s")


def test_a_curve_has_its_highest_and_its_lowest_bar() -> None:
    assert sparkline([4.0, 4.0, 2.0, 1.0], 2) == "█▁"
    assert sparkline([1.0], 60) == "▁"
