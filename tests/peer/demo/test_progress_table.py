"""What a demo shows: a table that explains itself on a terminal, and never a long silence in a pipe."""

from __future__ import annotations

import io
import math
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from dht.ground.host import PeerId
from dht.records.evaluation import Evaluation
from peer.console.plain_console import PlainConsole
from peer.demo.measuring_messages import Words
from peer.demo.progress_table import STILL_SECONDS, Figures, LineView, TableView, explanations, picture
from peer.demo.report import print_report
from peer.demo.summary import DemoRow, LogFollower, PeerLog, Summary
from peer.demo.swarm import undisturbed
from peer.events.event_log import to_json
from peer.events.peer_events import Event, TrainingProgressed

ONE, TWO = PeerId("12D3KooWaaaaaaaa"), PeerId("12D3KooWbbbbbbbb")
ROWS = (
    DemoRow("peer-1", ONE, "training", 120, 61_440, 44, 2.151),
    DemoRow("peer-2", TWO, "killed 9 s ago", 66, 33_800, 14, None),
)
EXPLAINED = explanations(math.log(256), "here each is a letter")


def shown(figures: Figures, width: int = 80, height: int = 24) -> str:
    console = PlainConsole(file=io.StringIO(), width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(picture(figures, "All train together (9 s)", EXPLAINED, width, height))
    return captured.get()


def test_the_table_says_what_each_figure_is() -> None:
    figures = Figures(ROWS, (21.0, 42.0), Evaluation(2.1, 44), 50, 21, "http://127.0.0.1:8080/")
    text = shown(figures)
    lines = text.splitlines()
    assert "21 of 42 s" in text
    assert "42 of 42 s, then 30 s more\n" in shown(replace(figures, seconds=(72.0, 42.0)), 60)
    assert "All train together (9 s)" in text
    assert any(line.split() == ["peer", "doing", "steps", "tokens", "rounds", "loss"] for line in lines)
    assert any(line.split() == ["peer-1", "aaaaaaaa", "training", "120", "61.4", "k", "44", "2.151"] for line in lines)
    assert "killed 9 s ago" in text
    assert "50 rounds; validation loss 2.100 nats after round 44" in text
    assert "Since the kill the others have closed 21 rounds." in text
    assert "loss    how badly it guesses the next piece, in nats: blind guessing gives 5.5" in map(str.rstrip, lines)
    assert "http://127.0.0.1:8080/" in text
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("num_peers", [2, 7, 8, 12, 13, 64])
def test_a_picture_fits_its_terminal_and_keeps_its_last_lines(num_peers: int) -> None:
    rows = tuple(replace(ROWS[0], name=f"peer-{number}") for number in range(1, num_peers + 1))
    text = shown(Figures(rows, (21.0, 42.0), Evaluation(2.1, 44), 50, 21, "http://127.0.0.1:8080/"))
    lines = text.splitlines()
    assert len(lines) <= 24
    assert lines[-1].startswith("Ctrl+C ends the demo")
    assert "http://127.0.0.1:8080/" in text
    assert f"peer-{num_peers} " in text
    assert ("how badly it guesses" in text) is (num_peers <= 7)
    assert ("peer-1 " in text) is (num_peers <= 12)
    assert ("and 53 more peers above them" in text) is (num_peers == 64)


def test_what_is_not_known_yet_is_not_shown() -> None:
    text = shown(Figures())
    for absent in ("of 42", "steps", "loss", "kill", "Page"):
        assert absent not in text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_fits(width: int) -> None:
    late = DemoRow("peer-4", TWO, "training, came late", 1178, 603_000, 143, 2.151)
    text = shown(Figures((*ROWS, late), (1.0, 2.0), page="http://127.0.0.1:8080/"), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert "training, came late" in text


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_say_a_stage_at_once_and_that_it_lasts() -> None:
    clock, output = Clock(), io.StringIO()
    view = LineView(PlainConsole(file=output, width=200), clock)
    view.stage("Starting")
    assert output.getvalue() == "Starting ...\n"
    view.look(Figures())
    clock.now += STILL_SECONDS
    view.look(Figures())
    view.look(Figures(page="http://here/"))
    view.look(Figures(page="http://here/"))
    assert output.getvalue().splitlines()[1:] == ["  5 s so far", "The page of this swarm: http://here/"]
    clock.now += 10
    view.look(Figures(ROWS, (30.0, 60.0), None, 7))
    assert output.getvalue().splitlines()[-1] == (
        "  30 of 60 s  steps: peer-1 120 (training) peer-2 66 (killed 9 s ago)  rounds: 7  loss of the model: "
        "not measured yet"
    )


def test_a_table_leaves_only_what_was_said() -> None:
    output = io.StringIO()
    view = TableView(PlainConsole(file=output, force_terminal=True, highlight=False, width=80), EXPLAINED, Clock())
    view.stage("Training")
    view.look(Figures(ROWS))
    view.say("killed peer-2")
    view.close()
    view.close()
    assert "killed peer-2" in output.getvalue()


def summary(loss_last: float | None = 1.5) -> Summary:
    row = DemoRow("peer-1", ONE, "", 120, 61_440, 44, 2.151)
    return Summary(
        (row,), 50, 0, 5.31, loss_last, 4.14, 4.16, 0.007, True, False, 40, True, True, 2.9, 860_000, 20.0, 120.0, 9.0
    )


@pytest.mark.parametrize("out", [None, Path("my models/llama")])
def test_the_report_has_both_texts_and_lines_to_type(out: Path | None) -> None:
    console = PlainConsole(file=io.StringIO(), width=100)
    with console.capture() as captured:
        print_report(
            console, summary(), Words(5.31, "def \x1b[31mqz", 1.5, "def get(self):\n  x"), EXPLAINED, out, "./peer"
        )
    text = captured.get()
    assert "\x1b" not in text
    assert "    def get(self):\n" in text
    assert "5.310 nats before, 1.500 after" in text
    assert "149 s: 20 to start, 120 to train" in text
    assert "  ./peer init my-run\n" in text
    assert ("./peer sample --model 'my models/llama' --prompt 'def '" in text) == (out is not None)


def test_a_followed_log_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    follower = LogFollower(PeerLog("peer-1", ONE), path)
    assert follower.read_on().own.inner_steps == 0
    lines = [to_json(Event(float(n), ONE, TrainingProgressed(n, 10 * n, 2.0, 1.0, 0.0))) + "\n" for n in (1, 2, 3)]
    path.write_text(lines[0] + lines[1][:20])
    assert follower.read_on().own.inner_steps == 1
    path.write_text(lines[0] + lines[1] + "nonsense\n")
    assert follower.read_on().own.inner_steps == 2
    path.write_text(lines[2])
    assert follower.read_on().own.inner_steps == 3, "a new log in the place of a full one"


def test_a_signal_waits_until_the_block_is_over() -> None:
    done = []

    def work() -> None:
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    with undisturbed():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
