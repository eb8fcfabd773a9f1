"""What a demo shows and concludes, from the event logs of its peers."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from averaging.rounds.round_facts import AppliedCommit, RoundCommitted
from dht.records.evaluation import Evaluation
from peer.console.plain_console import PlainConsole
from peer.demo.demo_view import LINE_SECONDS, DemoView, Figures, picture
from peer.demo.figures import PeerLog, Summary
from peer.events.event_log import to_json
from peer.events.peer_events import Evaluated, Event, TrainingProgressed
from peer.view.own_view import OwnView
from tests.kit.network.memory_networks import named

ME, OTHER = named(1), named(2)
VIEW = OwnView(
    inner_steps=120,
    tokens=61_440,
    confirmed_rounds=44,
    train_loss=2.151,
    versions=(30, 20),
    evaluation=Evaluation(2.1, 44),
)
FIGURES = Figures(
    {"peer-1": ("training", VIEW), "peer-2": ("killed", OwnView()), "peer-3": ("training, came late", VIEW)},
    (21.0, 42.0),
    21,
    "http://127.0.0.1:8080/",
)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_shows_each_peer_and_the_model_that_they_share(width: int) -> None:
    console = PlainConsole(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(picture(FIGURES, "All train together (9 s)"))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    rows = [line.split() for line in lines]
    assert ["peer-1", "training", "120", "61.4", "k", "44", "2.151"] in rows
    assert any("21 of 42 s" in line for line in lines)
    told = " ".join(captured.get().split())
    assert "The shared model: rounds: 50 validation loss: 2.100 nats after round 44" in told
    assert "since the kill: 21" in told
    assert "http://127.0.0.1:8080/" in told


def test_a_pipe_has_a_line_now_and_then() -> None:
    now, output = [100.0], io.StringIO()
    view = DemoView(PlainConsole(file=output, width=200), lambda: now[0])
    view.stage("Starting")
    view.look(Figures({}))
    now[0] += LINE_SECONDS
    view.look(Figures({}))
    view.look(FIGURES)
    now[0] += LINE_SECONDS
    view.look(FIGURES)
    view.close()
    *lines, last = output.getvalue().splitlines()
    assert lines == ["Starting ...", "  10 s so far", "The page of this swarm: http://127.0.0.1:8080/"]
    assert last.startswith("  21 of 42 s  steps: peer-1 120 (training) peer-2 0 (killed)")


def log_of(path: Path, *events: Event) -> PeerLog:
    path.write_text("".join(f"{to_json(event)}\n" for event in events) + '{"cut off')
    log = PeerLog(path.name, path)
    log.read_on()
    return log


def applied(fragment: int, version: int, digest: str) -> Event:
    return Event(2.0, ME, AppliedCommit(fragment, version, digest))


@pytest.mark.parametrize(
    ("theirs", "is_equal"),
    [
        ([(0, 1, "a"), (1, 1, "c")], True),
        ([(0, 1, "b"), (1, 1, "c")], False),
        ([(0, 1, "a"), (1, 2, "c")], False),
        ([(0, 1, "a")], False),
    ],
)
def test_a_working_swarm_has_one_model_that_learned(
    theirs: list[tuple[int, int, str]], is_equal: bool, tmp_path: Path
) -> None:
    shared = RoundCommitted(0, 1, (ME, OTHER), 0.7, 100, 0, 1.0, 50, 40, 100, 80)
    mine = log_of(
        tmp_path / "peer-1",
        Event(1.0, ME, Evaluated(5.5, 0)),
        Event(1.5, ME, TrainingProgressed(3, 300, 2.0, 9.0, 0.0)),
        applied(0, 1, "a"),
        applied(1, 1, "c"),
        Event(3.0, ME, shared),
        Event(4.0, ME, Evaluated(2.5, 2)),
    )
    other = log_of(tmp_path / "peer-2", *(applied(*one) for one in theirs), Event(3.0, OTHER, shared))
    mine.own = replace(mine.own, versions=(1, 1))
    summary = Summary((mine, other), (mine, other), other)
    facts = summary.facts()
    assert (facts["loss_first"], facts["loss_last"], facts["inner_steps"]["peer-1"]) == (5.5, 2.5, 3)
    assert (facts["bits_per_parameter_up"], facts["num_rounds"], facts["late_joiner_contributed"]) == (4.0, 2, True)
    assert summary.anchors_equal is is_equal
    problems = [] if is_equal else ["the logs do not show that all peers hold the same model"]
    assert summary.problems() == problems
