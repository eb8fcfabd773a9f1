"""A trainer that stands still is announced without a speed."""

from __future__ import annotations

from dht.ground.host import PeerId
from peer.events.peer_events import Event, TrainingProgressed
from peer.mailbox.mailbox import Mailbox
from peer.network.node.reporter import Reporter


class Scene:
    """A reporter over a trainer's counters, looked at every ten seconds."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events: list[Event] = []
        self.mailbox = Mailbox.in_process([4])
        self.reporter = Reporter(PeerId("me"), self.mailbox, lambda: 0.0, lambda: self.now, self.events.append)

    def steps(self, num_steps: int, tokens_per_second: float) -> None:
        trainer = self.mailbox.trainer
        trainer.inner_steps += num_steps
        trainer.tokens += 100 * num_steps
        trainer.tokens_per_second = tokens_per_second

    def told_after(self, seconds: int) -> float:
        for _ in range(0, seconds, 10):
            self.now += 10
            self.reporter.progress()
        fact = self.events[-1].fact
        assert isinstance(fact, TrainingProgressed)
        return fact.tokens_per_second


def test_a_frozen_trainer_is_announced_without_a_speed_until_its_next_step() -> None:
    scene = Scene()
    scene.steps(50, 200.0)
    assert scene.told_after(120) == 200.0
    assert scene.told_after(30) == scene.reporter.tokens_per_second() == 0.0
    scene.steps(1, 190.0)
    assert scene.told_after(10) == 190.0


def test_slow_steps_are_waited_for() -> None:
    scene = Scene()
    scene.steps(3, 1.0)  # 100 s each
    assert scene.told_after(480) == 1.0
    assert scene.told_after(40) == 0.0


def test_a_machine_that_slept_keeps_its_speed() -> None:
    scene = Scene()
    scene.steps(50, 200.0)
    scene.told_after(10)
    scene.now += 3600
    assert scene.told_after(10) == 200.0
