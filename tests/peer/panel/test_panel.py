"""The panel: a pure fold, a picture that fits 80 x 24, plain lines with a heartbeat, JSON lines, dead readers."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import xml.etree.ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peer.panel.panel import (
    HEARTBEAT_SECONDS,
    JsonView,
    PanelView,
    PlainView,
    heartbeat,
    make_view,
    sparkline,
)

from averaging.rounds.facts import AppliedCommit, RoundCommitted
from dht.host import PeerId
from dht.quantities import bit_rate_text, bytes_text, count_text, seconds_text
from peer.events.log import from_json
from peer.events.peer_events import (
    CatchUpProgressed,
    CaughtUp,
    Evaluated,
    Event,
    JoinedRun,
    LeftRun,
    PeerJoined,
    PeerLeft,
    StateServed,
    SwarmFound,
    SwarmLost,
    TrainingProgressed,
    WaitingForPeers,
)
from peer.panel.scene.state import NUM_LOSSES, PanelState, fold
from tests.kit.panels import render_svg, render_text

ME = PeerId("12D3KooWabcdefgh")
OTHER = PeerId("12D3KooWzyxwvuts")


def joined(at: float = 0.0) -> Event:
    return Event(at, ME, JoinedRun(run_id="demo.abc", device="cpu", num_parameters=860_000, versions=(0, 0, 0)))


def progressed(at: float, loss: float | None = 2.0) -> Event:
    return Event(
        at,
        ME,
        TrainingProgressed(
            inner_steps=int(at),
            tokens=int(at) * 1000,
            train_loss=loss,
            tokens_per_second=1000.0,
            wait_fraction=0.001,
        ),
    )


def committed(at: float, contributors: tuple[PeerId, ...] = (ME, OTHER)) -> Event:
    return Event(
        at,
        ME,
        RoundCommitted(
            fragment=1,
            version=4,
            contributors=contributors,
            outer_lr=0.7,
            tokens=24_000,
            num_void_shards=0,
            seconds=1.0,
            bytes_up=75_000,
            bytes_down=150_000,
            contribution_values_sent=1,
            result_values_received=1,
        ),
    )


def folded(*events: Event) -> PanelState:
    state = PanelState()
    for event in events:
        state = fold(state, event)
    return state


def test_totals_follow_the_events() -> None:
    state = folded(
        joined(),
        Event(1.0, ME, PeerJoined(remote=OTHER)),
        Event(1.0, ME, PeerJoined(remote=ME)),
        progressed(10.0),
        committed(20.0),
        committed(30.0, contributors=(OTHER,)),
        Event(30.0, ME, AppliedCommit(fragment=1, version=5, digest="ab")),
        Event(30.0, ME, AppliedCommit(fragment=9, version=5, digest="ab")),
        Event(31.0, ME, Evaluated(held_out_loss=1.5, version_sum=5)),
    )
    assert (state.num_peers, state.inner_steps, state.tokens) == (2, 10, 10_000)
    assert (state.rounds_committed, state.rounds_contributed) == (2, 1)
    assert (state.versions, state.held_out_loss, state.phase) == ((0, 5, 0), 1.5, "training")
    assert state.bits_per_second(31.0) == (8 * 150_000 / 60, 8 * 300_000 / 60)
    assert state.bits_per_second(85.0) == (8 * 75_000 / 60, 8 * 150_000 / 60)
    assert state.bits_per_second(1000.0) == (0.0, 0.0)


def test_phases() -> None:
    state = folded(Event(0.0, ME, WaitingForPeers(reason="nobody answers", seconds=5.0)))
    assert state.phase == "waiting for peers"
    state = fold(state, joined())
    assert state.phase == "training"
    state = fold(fold(state, Event(1.0, ME, PeerJoined(remote=OTHER))), Event(2.0, ME, SwarmLost(seconds=60.0)))
    assert (state.phase, state.num_peers) == ("training alone", 1)
    state = fold(state, Event(3.0, ME, SwarmFound(peers=2, seconds=60.0)))
    assert state.phase == "training"
    state = fold(state, Event(4.0, ME, LeftRun(reason="asked to", inner_steps=7, tokens=9, rounds_contributed=1)))
    assert (state.phase, state.inner_steps) == ("left", 7)


@given(st.lists(st.floats(0, 20), max_size=2000))
def test_the_loss_curve_spans_the_session_in_bounded_memory(losses: list[float]) -> None:
    state = folded(*(progressed(float(at), loss) for at, loss in enumerate(losses)))
    assert len(state.losses) <= NUM_LOSSES
    assert state.losses == tuple(losses[:: state.loss_stride])
    assert state.losses[:1] == tuple(losses[:1])


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(1, 80), st.booleans())
def test_sparkline_fits_and_orders(values: list[float], width: int, ascii_only: bool) -> None:
    line = sparkline(values, width, ascii_only=ascii_only)
    assert len(line) == min(width, len(values))
    assert line.isascii() or not ascii_only
    falling = sparkline(sorted(values, reverse=True), width)
    assert list(falling) == sorted(falling, reverse=True)


HOSTILE = "\x1b[2J[red]\u202e" + "x" * 300


@given(
    st.lists(
        st.sampled_from(
            [joined(), progressed(5.0), committed(6.0), Event(7.0, ME, PeerLeft(remote=OTHER, reason=HOSTILE))]
        )
    )
)
def test_the_panel_fits_eighty_by_twenty_four(events: list[Event]) -> None:
    text = render_text(folded(*events), now=1e5)
    lines = text.splitlines()
    assert len(lines) <= 23
    assert {len(line) for line in lines} <= {0, 80}
    assert "\x1b" not in text


def test_the_panel_says_what_matters() -> None:
    state = folded(joined(), Event(1.0, ME, PeerJoined(remote=OTHER)), progressed(10.0, 2.5), committed(20.0))
    text = render_text(state, now=32.0)
    for part in (
        "demo.abc · training · 32 s",
        "cpu, model of 860 k parameters",
        "10 k tokens in 10 inner steps, 1 round",
        "2 peers with this one; last round 12 s ago",
        "versions 0 0 0",
        "train 2.5000",
        "up 10 kbit/s (75 kB in this session)",
        "31 s ago  Peer zyxwvuts joined.",
        "Ctrl+C leaves the run",
    ):
        assert part in text


def test_work_of_this_session_and_of_all_are_not_mixed() -> None:
    earlier = {"earlier_inner_steps": 2000, "earlier_tokens": 1_000_000, "earlier_rounds": 40}
    restarted = Event(0.0, ME, dataclasses.replace(joined().fact, **earlier))
    progress = dataclasses.replace(progressed(10.0, 2.5).fact, inner_steps=2275, tokens=1_160_000)
    state = folded(restarted, Event(10.0, ME, progress), committed(20.0))
    text = render_text(state, now=32.0)
    assert "160 k tokens in 275 inner steps, 1 round in this session" in text
    assert "1.16 M tokens in 2275 inner steps, 41 rounds in all" in text
    # Another network process counts on.
    again = fold(state, Event(40.0, ME, dataclasses.replace(restarted.fact, earlier_inner_steps=2200)))
    assert "275 inner steps, 1 round in this session" in render_text(again, now=42.0)


def test_a_seed_says_what_it_gives() -> None:
    seed = Event(0.0, ME, dataclasses.replace(joined().fact, device="seed"))
    state = folded(seed, *(Event(at, ME, StateServed(OTHER, 300_000)) for at in (2.0, 3.0)))
    text = render_text(state, now=4.0)
    for part in ("demo.abc · serving", "does not train", "1 newcomer, 600 kB", "(600 kB in this session)"):
        assert part in text
    for part in ("tokens/s", "train unknown", "rounds contributed"):
        assert part not in text
    alone = fold(state, Event(9.0, ME, SwarmLost(seconds=5.0, is_training=False)))
    assert alone.phase == "alone"
    assert fold(alone, Event(9.5, ME, PeerJoined(remote=OTHER))).phase == "serving"


def test_markup_in_names_is_shown_and_not_obeyed() -> None:
    state = folded(Event(7.0, ME, PeerLeft(remote=OTHER, reason="[red]bye[/red] \x1b[31m")))
    text = render_text(state, now=8.0)
    assert "[red]bye[/red]" in text
    assert "\x1b" not in text


def test_the_picture_is_svg_and_repeatable() -> None:
    state = folded(joined(), progressed(10.0), committed(20.0))
    picture = render_svg(state, now=25.0)
    assert xml.etree.ElementTree.fromstring(picture).tag.endswith("svg")
    assert picture == render_svg(state, now=25.0)
    assert picture != render_svg(state, now=99.0)


def test_plain_lines_one_per_event_and_a_heartbeat() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    view.show(joined(100.0))
    view.show(progressed(101.0))
    assert len(stream.getvalue().splitlines()) == 1
    view.tick(100.0 + HEARTBEAT_SECONDS - 1)
    assert len(stream.getvalue().splitlines()) == 1
    view.tick(100.0 + HEARTBEAT_SECONDS)
    view.tick(100.0 + HEARTBEAT_SECONDS + 1)
    first, second = stream.getvalue().splitlines()
    assert first.endswith("Joined demo.abc on cpu with 860 k parameters; versions 0 0 0.")
    assert "Still training: inner step 101, loss 2.0000, 1 k tokens/s, 1 peer" in second


def test_waiting_is_said_once_in_half_a_minute_unless_the_reason_changes() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    waits = [Event(at, ME, WaitingForPeers("nobody answers", at)) for at in (0.0002, 5.0, 10.0, 35.0, 40.0)]
    for event in [*waits, Event(41.0, ME, WaitingForPeers("no trainer has a state yet", 41.2))]:
        view.show(event)
    said = [line.partition(" ")[2] for line in stream.getvalue().splitlines()]
    assert said == [
        "Waiting for peers: nobody answers.",
        "Waiting for peers since 35 s: nobody answers.",
        "Waiting for peers since 41 s: no trainer has a state yet.",
    ]
    assert [sentence for _, sentence in folded(*waits).recent] == ["Waiting for peers since 40 s: nobody answers."]


def test_a_seeds_heartbeat_tells_of_no_inner_step() -> None:
    seed = JoinedRun(run_id="demo.abc", device="seed", num_parameters=860_000, versions=(3, 4))
    said = heartbeat(folded(Event(1.0, ME, seed)), 40.0)
    assert said == "Still serving: versions 3 4, 1 peer."


def test_the_runs_clock_is_shown_as_a_share_of_its_budget() -> None:
    fact = TrainingProgressed(5, 6, 2.0, 7.0, 0.0, run_tokens=363_000_000, learning_rate=0.0021)
    state = folded(joined(), Event(2.0, ME, fact))
    assert "363 M tokens committed, rate 0.0021" in render_text(state, now=3.0)
    budget = dataclasses.replace(state, budget_tokens=2_000_000_000)
    assert "18% of 2 G tokens, rate 0.0021" in render_text(budget, now=3.0)


def test_json_lines_are_events_and_notes_go_elsewhere() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    view = JsonView(stdout, stderr)
    events = [joined(), progressed(1.0, math.nan), committed(2.0)]
    for event in events:
        view.show(event)
    view.note("the disk is full")
    view.tick(1000.0)
    lines = stdout.getvalue().splitlines()
    assert [type(from_json(line).fact) for line in lines] == [type(event.fact) for event in events]
    assert json.loads(lines[1])["train_loss"] is None
    assert stderr.getvalue() == "the disk is full\n"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Gone(Terminal):
    """A reader that has closed its end."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("output", ["panel", "plain", "json"])
def test_a_reader_that_is_gone_stops_nothing(output: str) -> None:
    view = make_view(output, Gone(), Gone(), {"TERM": "xterm"})  # type: ignore[arg-type]
    view.show(joined())
    view.note("note")
    view.tick(100.0)
    view.close()


def test_the_live_panel_draws_and_keeps_notes() -> None:
    terminal = Terminal()
    view = PanelView(terminal)
    view.show(joined(10.0))
    view.note("the disk is full")
    view.tick(12.0)
    view.close()
    assert "demo.abc" in terminal.getvalue()
    assert terminal.getvalue().count("the disk is full") == 1
    # The cursor that the panel hides is shown again.
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        (Terminal(), {"TERM": "xterm"}, PanelView),
        (Terminal(), {"TERM": "dumb"}, PlainView),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, PlainView),
        (io.StringIO(), {"TERM": "xterm"}, PlainView),
    ],
)
def test_the_panel_is_for_capable_terminals(stream: io.StringIO, environ: dict[str, str], expected: type) -> None:
    assert type(make_view("auto", stream, io.StringIO(), environ)) is expected


def test_letters_a_terminal_cannot_show_are_escaped() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as stream:
        PlainView(stream).note("café")
        assert raw.getvalue() == b"caf\\xe9\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count_text(9999), "9999"),
        (count_text(10_000), "10 k"),
        (count_text(999_499_999), "999 M"),
        (count_text(999_500_000), "1 G"),
        (count_text(0.5), "0.5"),
        (count_text(-1500.0), "-1.5 k"),
        (bytes_text(0), "0 B"),
        (bytes_text(1_500), "1.5 kB"),
        (bit_rate_text(1_250_000), "1.25 Mbit/s"),
        (seconds_text(0.354), "0.354 s"),
        (seconds_text(59.6), "1 min"),
        (seconds_text(75), "1 min 15 s"),
        (seconds_text(7260), "2 h 1 min"),
        (seconds_text(180_000), "2 d 2 h"),
        (seconds_text(math.inf), "an unknown time"),
    ],
)
def test_quantities(text: str, expected: str) -> None:
    assert text == expected


@given(st.floats(-1e17, 1e17))
def test_quantities_have_no_exponent(value: float) -> None:
    for text in (count_text(value), bytes_text(value)):
        assert "e" not in text.replace("e-", "") or abs(value) < 1e-3


def test_a_download_shows_a_bar_with_rate_and_time_left() -> None:
    progress = Event(
        2.0, ME, CatchUpProgressed(done_bytes=430, total_bytes=1000, bits_per_second=12_000.0, seconds_left=20.0)
    )
    state = fold(PanelState(), progress)
    shown = render_text(state, 3.0)
    assert "catching up" in shown
    assert "43% of 1 kB" in shown
    assert "12 kbit/s, 20 s left" in shown
    assert shown.count("█") == 17
    done = Event(4.0, ME, CaughtUp(fragments=(0,), donor=OTHER, num_bytes=1000, seconds=3.0, donors=(OTHER, ME)))
    after = fold(state, done)
    assert after.catch_up is None
    assert "█░" not in render_text(after, 5.0)
    assert done.sentence().count(",") == 1


def test_plain_lines_about_a_download_come_now_and_then() -> None:
    out = io.StringIO()
    view = PlainView(out)
    for second in range(12):
        view.show(
            Event(
                float(second),
                ME,
                CatchUpProgressed(done_bytes=second, total_bytes=12, bits_per_second=8.0, seconds_left=1.0),
            )
        )
    assert out.getvalue().count("Catching up") == 3
