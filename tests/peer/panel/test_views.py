"""Views: plain lines, JSON lines, the panel on a terminal; readers that are gone; which view a terminal gets."""

from __future__ import annotations

import io
import json
import math
import os

import pytest

from dht.identity.speakable import speakable_name
from peer.events.event_log import from_json
from peer.events.peer_events import (
    Event,
    LeftRun,
    MemberChanged,
    SwarmContact,
)
from peer.panel.live_panel import PanelView
from peer.panel.plain_and_json_views import (
    HEARTBEAT_SECONDS,
    NAMES_SECONDS,
    JsonView,
    PlainView,
    make_view,
)
from peer.panel.updates import Doing, LoadingStep, Remark, RunFacts
from peer.view.swarm_seen import OwnAddresses, SwarmSeen
from tests.kit.panels import ADDRESS, KIRAN, NOW, an_evening
from tests.kit.peer_events import ME, StringTerminal, committed, joined, progressed


def told_by(view: PlainView, stream: io.StringIO) -> list[str]:
    """Lines without their time."""
    return [line.partition(" ")[2] if line[2:3] == ":" else line for line in stream.getvalue().splitlines()]


def test_plain_lines_are_for_people() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    view.tick(100.0)
    for event in (joined(100.0), progressed(101.0), committed(102.0), Event(103.0, ME, MemberChanged(KIRAN))):
        view.show(event)
    view.tell(SwarmSeen(at=104.0, names=((KIRAN, "Kiran"),), num_others=1))
    view.tell(Remark("the manifest is new"))
    view.tick(100.0 + HEARTBEAT_SECONDS - 1)
    assert len(stream.getvalue().splitlines()) == 3
    view.tick(100.0 + HEARTBEAT_SECONDS)
    view.tick(100.0 + HEARTBEAT_SECONDS + 1)
    said = told_by(view, stream)
    assert said[0] == "Joined demo.abc on cpu with 860 k parameters, before the first round."
    assert said[1] == "Kiran is here."
    assert said[2] == "The manifest is new"
    assert said[3] == "Training: 101 k tokens, 1 round, 1000 tokens/s, loss 2.000 nats per token, 30 s, 1 other here."


def test_a_plain_line_waits_for_a_name_and_not_for_long() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    view.show(joined(100.0))
    view.show(Event(103.0, ME, MemberChanged(KIRAN)))
    view.tick(103.0 + NAMES_SECONDS - 0.1)
    assert len(told_by(view, stream)) == 1
    view.tick(103.0 + NAMES_SECONDS)
    view.show(Event(110.0, ME, MemberChanged(KIRAN, "it said goodbye")))
    view.tell(SwarmSeen(at=109.0))
    assert len(told_by(view, stream)) == 2
    view.close()
    assert told_by(view, stream)[1:3] == [f"{speakable_name(KIRAN)} is here.", f"{speakable_name(KIRAN)} left."]


def test_a_plain_line_comes_every_half_minute_whatever_else_was_said() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    view.show(joined(0.0))
    view.tick(0.0)
    for second in range(1, 91):
        view.show(progressed(float(second)))
        view.show(committed(float(second)))
        view.tick(float(second))
    assert sum("Training:" in line for line in stream.getvalue().splitlines()) == 3
    assert len(stream.getvalue().splitlines()) == 4


def test_plain_output_tells_loading_pausing_and_goodbye() -> None:
    stream = io.StringIO()
    view = PlainView(stream, an_evening())
    for told in (
        LoadingStep("key", "Ada", is_done=True),
        LoadingStep("program"),
        RunFacts("starlings.abc", page="http://203.0.113.7"),
        OwnAddresses((ADDRESS,)),
        Doing("paused"),
        Doing("resumed"),
    ):
        view.tell(told)
    view.show(Event(NOW, ME, LeftRun("asked to", 8000, 4_154_000, 135)))
    view.close()
    said = told_by(view, stream)
    assert said[:4] == [
        "Your key: Ada",
        "The run's page: http://203.0.113.7",
        f"Listening on {ADDRESS}",
        "Paused; this machine still serves others",
    ]
    assert said[4] == "Training continues"
    assert said[-3].startswith("Thank you, Ada.")


def test_waiting_is_said_once_in_half_a_minute_unless_the_reason_changes() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    waits = [
        Event(at, ME, SwarmContact("waiting", at, reason="nobody answers")) for at in (0.0002, 5.0, 10.0, 35.0, 40.0)
    ]
    view.tick(0.0)
    for event in [*waits, Event(41.0, ME, SwarmContact("waiting", 41.2, reason="no trainer has the model yet"))]:
        view.tick(event.at)
        view.show(event)
    assert told_by(view, stream) == [
        "Waiting for peers: nobody answers.",
        "Waiting for peers for 35 s: nobody answers.",
        "Waiting for peers for 41 s: no trainer has the model yet.",
    ]


def test_json_lines_are_events_and_notes_go_elsewhere() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    view = JsonView(stdout, stderr)
    events = [joined(), progressed(1.0, math.nan), committed(2.0)]
    for event in events:
        view.show(event)
    view.note("the disk is full")
    view.tell(OwnAddresses(("/ip4/203.0.113.5/tcp/1",)))
    view.tell(SwarmSeen(at=1.0))
    view.tick(1000.0)
    lines = stdout.getvalue().splitlines()
    assert [type(from_json(line).fact) for line in lines] == [type(event.fact) for event in events]
    assert json.loads(lines[1])["train_loss"] is None
    assert stderr.getvalue() == "The disk is full\nListening on /ip4/203.0.113.5/tcp/1\n"


class Gone(StringTerminal):
    """A reader that has closed its end."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("output", ["panel", "plain", "json"])
def test_a_reader_that_is_gone_stops_nothing(output: str) -> None:
    view = make_view(output, Gone(), Gone(), {"TERM": "xterm"})  # type: ignore[arg-type]
    view.show(joined())
    view.note("note")
    view.tick(100.0)
    view.tick(200.0)
    view.restore()
    view.close()


def test_the_panel_has_a_screen_of_its_own_and_leaves_the_goodbye_and_warnings() -> None:
    terminal = StringTerminal()
    view = PanelView(terminal, an_evening(), environ={"TERM": "xterm-256color"})
    view.tick(NOW)
    view.note("the disk is full")
    view.tell(Remark("soon of no use"))
    view.tick(NOW + 2)
    view.close()
    drawn, _, after = terminal.getvalue().partition("\x1b[?1049l")
    assert drawn.startswith("\x1b[?1049h\x1b[?25l")
    assert "starlings" in drawn
    # The cursor that the panel hides is shown again, and what stays is plain.
    assert drawn.endswith("\x1b[?25h")
    assert after.startswith("The disk is full\r\nThank you, Ada.")
    assert "soon of no use" not in after
    assert "\x1b" not in after


def test_a_resized_terminal_is_drawn_anew_at_once() -> None:
    terminal, size = StringTerminal(), [80, 24]
    view = PanelView(terminal, an_evening(), environ={"TERM": "xterm"}, size=lambda: (size[0], size[1]))
    view.tick(NOW)
    before = len(terminal.getvalue())
    view.tick(NOW + 0.1)
    assert len(terminal.getvalue()) == before
    size[0] = 60
    view.tick(NOW + 0.2)
    assert terminal.getvalue()[before:].startswith("\x1b[H")


@pytest.mark.parametrize(
    ("environ", "has_colours"),
    [({"TERM": "xterm-256color"}, True), ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False)],
)
def test_no_color_takes_the_colours_away_and_nothing_else(environ: dict[str, str], has_colours: bool) -> None:
    terminal = StringTerminal()
    PanelView(terminal, an_evening(), environ=environ).tick(NOW)
    assert ("\x1b[32m" in terminal.getvalue()) == has_colours
    assert "\x1b[1m" in terminal.getvalue()
    assert "starlings" in terminal.getvalue()


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        (StringTerminal(), {"TERM": "xterm"}, PanelView),
        (StringTerminal(), {"TERM": "dumb"}, PlainView),
        (StringTerminal(), {"TERM": "xterm", "NO_COLOR": "1"}, PanelView),
        (io.StringIO(), {"TERM": "xterm"}, PlainView),
    ],
)
def test_the_panel_is_for_capable_terminals(stream: io.StringIO, environ: dict[str, str], expected: type) -> None:
    assert type(make_view("auto", stream, io.StringIO(), environ)) is expected


def test_on_a_terminal_of_letters_the_panel_is_of_letters() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as stream:
        PanelView(stream, an_evening(), environ={"TERM": "xterm"}).tick(NOW)
        assert b"~" in raw.getvalue()
        assert "█".encode() not in raw.getvalue()


def test_a_panel_that_breaks_gives_the_terminal_back(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = StringTerminal()
    view = PanelView(terminal, an_evening(), environ={"TERM": "xterm"})
    view.tick(NOW)
    monkeypatch.setattr("peer.panel.live_panel.screen", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        view.tick(NOW + 2)
    assert terminal.getvalue().endswith("\x1b[?1049l")


def test_drawing_is_light_for_the_trainer() -> None:
    """No clock: what is written in a minute of the panel is a few kB, as over a slow line."""
    terminal = StringTerminal()
    view = PanelView(terminal, an_evening(), environ={"TERM": "xterm"}, size=lambda: (200, 60))
    for tenth in range(600):
        view.tick(NOW + tenth / 10)
    assert len(terminal.getvalue().encode()) < 60_000
    assert os.linesep == "\n"
