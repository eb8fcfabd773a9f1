"""What the table shows after the training is what the summary says."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from peer.config.manifest import RunManifest
from peer.demo.demo import Demo
from peer.demo.progress_table import Figures
from peer.demo.summary import LogFollower, PeerLog, summarise
from peer.demo.swarm import DemoPeer, DemoSwarm
from peer.events.event_log import to_json
from peer.events.peer_events import Event, TrainingProgressed
from peer.events.rotating_log import LineLog
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
