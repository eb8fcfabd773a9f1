"""What the table shows after the training is what the summary says."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from averaging.rounds.round_facts import RoundCommitted
from dht.ground.host import PeerId
from dht.records.evaluation import Evaluation
from peer.config.manifest import RunManifest
from peer.demo.demo import Demo
from peer.demo.progress_table import Figures, progress_line
from peer.demo.summary import LogFollower, PeerLog, newest_evaluation, num_rounds_of, rounds_of, row_of, summarise
from peer.demo.swarm import DemoPeer, DemoSwarm
from peer.events.event_log import to_json
from peer.events.peer_events import Event, TrainingProgressed
from peer.events.rotating_log import LineLog
from peer.view.own_view import OwnView
from tests.kit.network.memory_networks import named

ME = named(1)


@dataclass
class Looks:
    """Keeps what it is shown."""

    seen: list[Figures] = field(default_factory=list)

    def say(self, sentence: str) -> None:
        pass

    def stage(self, sentence: str) -> None:
        pass

    def look(self, figures: Figures) -> None:
        self.seen.append(figures)

    def close(self) -> None:
        pass


def test_what_comes_with_the_goodbyes_changes_no_figure(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    events = LogFollower(PeerLog("peer-1", ME), tmp_path / "events.jsonl")
    peer = DemoPeer("peer-1", ME, tmp_path, ended, events, 0.0)
    view = Looks()
    demo = Demo(DemoSwarm(tmp_path, "demo." + "a" * 20, RunManifest(name="demo"), peers=[peer]), view)
    log = LineLog(tmp_path / "events.jsonl", print)

    def work(steps: int) -> None:
        log.append(to_json(Event(float(steps), ME, TrainingProgressed(steps, 100 * steps, 1.0, 0.0, 2.0))))
        demo.show()

    work(1)
    work(2)
    demo.end()
    work(3)
    log.close()
    assert [figures.rows[0].steps for figures in view.seen] == [1, 2, 2]


def committed(version: int, *contributors: PeerId) -> RoundCommitted:
    return RoundCommitted(0, version, contributors, 0.7, 100, 0, 1.0, 8, 8, 1, 1)


def test_a_peer_that_trains_alone_has_no_rounds_with_others() -> None:
    """Two of one version are one round of the model; the page counts the versions too."""
    other = named(2)
    mine = PeerLog("peer-1", ME, rounds={(0, 0): committed(0, ME), (0, 1): committed(1, ME)})
    theirs = PeerLog("peer-2", other, rounds={(0, 1): committed(1, other), (0, 2): committed(2, ME, other)})
    theirs.digests[(0, 5)] = "fetched"
    logs = [mine, theirs]
    assert [row_of(log, "training", rounds_of(logs)).rounds for log in logs] == [1, 1]
    assert (num_rounds_of(logs), num_rounds_of([mine])) == (5, 2)


def test_the_loss_is_told_with_the_rounds_after_which_it_was_measured() -> None:
    old = PeerLog("peer-1", ME, OwnView(evaluation=Evaluation(3.0, 10)))
    assert newest_evaluation([old, PeerLog("peer-2", named(2))]) == Evaluation(3.0, 10)
    assert newest_evaluation([PeerLog("peer-2", named(2))]) is None
    line = progress_line(Figures(evaluation=Evaluation(3.0, 10), num_rounds=37))
    assert "rounds: 37  loss of the model: 3.000 after round 10" in line


@pytest.mark.parametrize(
    ("digests", "problem"),
    [
        ([{(0, 1): "a"}, {(0, 1): "a"}], ""),
        ([{(0, 1): "a"}, {(0, 1): "b"}], "peers hold different anchors at the same version"),
        ([{(0, 1): "a"}, {(0, 2): "b"}], "no version of the whole model was at all peers"),
        ([{(0, 1): "a", (1, 1): "c"}, {(0, 1): "a"}], "no version of the whole model was at all peers"),
    ],
)
def test_anchors_that_were_never_compared_are_not_called_different(
    digests: list[dict[tuple[int, int], str]], problem: str
) -> None:
    logs = [PeerLog(str(number), named(number), digests=held) for number, held in enumerate(digests)]
    found = summarise(logs, [log.peer_id for log in logs], [], 5.0, 1.0, 10, (1.0, 1.0, 1.0))
    about = [one for one in found.problems() if "anchors" in one or "model" in one]
    assert [one[: len(problem)] for one in about] == ([problem] if problem else [])
