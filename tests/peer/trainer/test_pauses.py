"""A pause is no sample: neither in what a trainer announces nor in what others hold against its claims."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.rounds.waits import HEARTBEAT_SECONDS, Waits
from averaging.trust.announced_speeds import MAX_PEERS, WINDOW_SECONDS, AnnouncedSpeeds
from averaging.trust.claim_guard import Guard, GuardPorts
from averaging.trust.exclusions import STRIKES, TOKENS_MARGIN
from averaging.wire.messages import Offer
from dht.ground.host import PeerId
from dht.ground.sleep_detection import SETTLE_SECONDS, Wakefulness
from peer.trainer.loop.mailbox_link import NUM_STEPS, StepSpeed
from tests.kit.clock import Clock
from tests.kit.trainer.trainer_link import link_of, module_of

ME, OTHER = PeerId("me"), PeerId("other")
DIGEST = b"anchor.."


def announced_after(durations: list[float], tokens: int = 10) -> float:
    """What a trainer announces after inner steps that took so long."""
    clock = Clock(1000.0)
    link = link_of(module_of(), clock=clock)
    link.after_inner_step(tokens)
    for seconds in durations:
        clock.now += seconds
        link.after_inner_step(tokens)
    return link.mailbox.trainer.tokens_per_second


@pytest.mark.parametrize("gap", [60.0, 90.0, 8 * 3600.0, -3600.0, -0.4, 0.0], ids=str)
@pytest.mark.parametrize("steps_before", [3, 200])
def test_a_gap_between_two_steps_does_not_change_the_announced_speed(gap, steps_before):
    """Sleep, suspend, validation, checkpoint, a clock that was set forth or back."""
    speeds = {announced_after([0.4] * steps_before + [0.4 + gap] + [0.4] * after) for after in (0, 1, 50)}
    assert sorted(speeds) == pytest.approx([25.0] * len(speeds))


def test_a_validation_after_every_third_step_and_a_recompilation_do_not_either():
    assert announced_after([0.4, 0.4, 5.4] * 40) == pytest.approx(25.0)
    assert announced_after([0.4] * 40 + [20.0] * 10) == pytest.approx(25.0)
    assert announced_after([90.0, 0.4, 0.4]) == pytest.approx(25.0)  # the first step compiles


@given(st.lists(st.tuples(st.floats(1e-3, 1e4), st.integers(1, 10_000)), min_size=1, max_size=NUM_STEPS))
def test_no_window_is_trained_faster_than_the_margin_allows(steps):
    speed = StepSpeed()
    for seconds, tokens in steps:
        speed.note(seconds, tokens)
    seconds, tokens = sum(step[0] for step in steps), sum(step[1] for step in steps)
    assert (
        tokens
        <= (1 + 1e-9) * 2 * speed.tokens_per_second * seconds
        <= TOKENS_MARGIN * speed.tokens_per_second * seconds
    )


# --- what others hold against a claim ---


class Watch:
    """A guard at versions 10 to 14, one a minute; it looks at its clock as a node does."""

    def __init__(self, news_seconds: float = 30.0) -> None:
        self.now = 1000.0
        self.reports: list = []
        self.announced = AnnouncedSpeeds()
        ports = GuardPorts(
            lambda: self.now,
            self.reports.append,
            speed_of=self.announced.fastest,
            news_seconds=lambda: news_seconds,
        )
        self.guard = Guard(ME, 4, ports)
        self.timing = Waits.with_bounds(60.0)
        self.timing.own_pace.observe(0.0)
        self.timing.own_pace.observe(60.0)
        self.slack = self.timing.mean.seconds + HEARTBEAT_SECONDS
        self.announce(25.0)
        self.version = 9
        for _ in range(5):
            self.advance(60.0)

    def announce(self, speed: float) -> None:
        self.announced.note(OTHER, speed, self.now)

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            self.guard.awake()

    def advance(self, seconds: float) -> None:
        self.wait(seconds)
        self.version += 1
        self.guard.advanced(0, self.version, self.timing)

    def claim(self, tokens: float, base: int | None = None, sequence: int = 1) -> str:
        offer = Offer(
            0, self.version, 0, DIGEST, self.version if base is None else base, int(tokens), 10, sequence, 1e6, True
        )
        machine = SimpleNamespace(version=self.version, timing=self.timing, anchor_of=lambda _: DIGEST)
        return self.guard.objection(OTHER, offer, machine) or self.guard.claim_objection(OTHER, offer, self.timing)

    @property
    def is_left_out(self) -> bool:
        return bool(self.guard.excluded([OTHER]))


@pytest.mark.parametrize("speed_after", [0.0, 0.7, 8.0], ids=["restarted", "paused", "throttled"])
def test_work_is_held_against_the_speed_at_which_it_was_done(speed_after):
    """It trained at 25 tokens/s for a minute, and its newest record says less."""
    watch = Watch()
    watch.wait(60.0)
    watch.announce(speed_after)
    assert watch.claim(25.0 * 60) == ""
    assert not watch.reports


def test_a_peer_that_slept_until_nobody_knew_it_any_more_is_believed_at_once():
    watch = Watch()
    for _ in range(60):
        watch.advance(60.0)
    watch.announce(0.0)
    watch.wait(10.0)
    assert watch.claim(25.0 * 10) == ""
    assert watch.claim(1e9)  # and not more than that


def test_work_that_was_faster_than_was_ever_announced_is_refused_without_blame_until_the_news_is_here():
    """A game ended: 250 tokens/s from one step to the next."""
    watch = Watch(news_seconds=30.0)
    watch.wait(60.0)
    for sequence in range(10):
        assert watch.claim(250.0 * 60 + watch.slack * 75 + 1000, sequence=sequence)
        watch.wait(2.5)
    assert not watch.reports
    watch.announce(250.0)
    assert watch.claim(250.0 * 60, sequence=11) == ""
    assert not watch.is_left_out
    assert not watch.reports


def test_who_goes_on_claiming_what_it_never_announces_is_left_out():
    watch = Watch(news_seconds=30.0)
    for sequence in range(40):
        watch.wait(5.0)
        assert watch.claim(25.0 * 3 * 8 * (watch.now - 1300.0), sequence=sequence)
        if watch.is_left_out:
            break
    assert watch.is_left_out
    assert watch.now - 1300.0 <= 30.0 + 5.0 * (STRIKES + 1)


def test_a_claim_beyond_what_any_machine_gets_faster_is_blamed_at_once():
    watch = Watch(news_seconds=30.0)
    watch.wait(60.0)
    for sequence in range(STRIKES):
        assert watch.claim(1e9, sequence=sequence)
    assert watch.is_left_out


def test_a_claim_now_and_then_is_refused_each_time_and_forgets_nothing_for_the_others():
    watch = Watch(news_seconds=30.0)
    for sequence in range(20):
        watch.wait(61.0)
        assert watch.claim(1e9, base=watch.version, sequence=sequence)


@pytest.mark.parametrize("asleep_seconds", [60.0, 90.0, 3600.0])
@pytest.mark.parametrize("seconds_after_waking", [0.0, 3.0, SETTLE_SECONDS - 1])
def test_who_slept_does_not_take_waking_for_the_time_at_which_a_version_came(asleep_seconds, seconds_after_waking):
    """The version came to the others when this peer fell asleep, and all of them trained on it meanwhile."""
    watch = Watch()
    watch.wait(30.0)
    watch.now += asleep_seconds
    watch.advance(seconds_after_waking)
    watch.wait(1.0)
    assert watch.claim(25.0 * asleep_seconds) == ""
    assert not watch.reports
    watch.wait(SETTLE_SECONDS)
    watch.advance(60.0)
    assert watch.claim(25.0 * 3600)  # its own clock counts again


def test_a_second_nap_soon_after_waking_does_not_shorten_the_first():
    wake = Wakefulness()
    wake.note(100.0)
    wake.note(200.0)
    wake.note(205.0)
    wake.note(220.0)
    assert wake.since(221.0) == 100.0
    for second in range(221, 221 + int(SETTLE_SECONDS)):
        wake.note(float(second))
    assert wake.since(251.0) == 251.0


def test_the_fastest_of_two_windows_counts_and_memory_is_bounded():
    speeds = AnnouncedSpeeds()
    speeds.note(OTHER, 100.0, 0.0)
    speeds.note(OTHER, 10.0, WINDOW_SECONDS - 1)
    speeds.note(OTHER, 10.0, WINDOW_SECONDS)
    assert speeds.fastest(OTHER) == 100.0
    speeds.note(OTHER, 10.0, 2 * WINDOW_SECONDS)
    assert speeds.fastest(OTHER) == 10.0
    for number in range(MAX_PEERS):
        speeds.note(PeerId(f"peer{number}"), 1.0, 0.0)
    assert speeds.fastest(OTHER) == 0.0
    assert speeds.fastest(PeerId("peer0")) == 1.0
