"""A member whose line is slow, or whose owner limits it, contributes less and hinders nobody."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.exchange.reducing import Deliveries
from averaging.lanes.line_capacity import UploadRate
from averaging.rounds.line_budget import chosen_shards
from averaging.rounds.round_facts import RoundCommitted, WorkLost
from averaging.rounds.shard_plan import plan_shards
from averaging.wire.frames import encode
from averaging.wire.messages import HISTORY_COMMITS, Contribution, Result
from dht.ground.host import PeerId, Stream
from dht.streams.upload_and_download_limits import URGENT_BYTES, Pace
from peer.events.peer_events import Event
from tests.kit.network.link_pair import PAYLOAD, B, Pair, contribution, shards
from tests.kit.tiers import sampled
from tests.simulator.network.host import MemoryHost
from tests.simulator.peer import EPOCH_SECONDS, Life, simulated_identity
from tests.simulator.scenarios.scenario import Scenario
from tests.simulator.scenarios.schedule import spec_of
from tests.simulator.scenarios.spec import Fault, SimulationSpec
from tests.simulator.simulation import simulate
from tests.simulator.virtual_time import run_virtual


class LimitedStream:
    """A stream of such a host."""

    def __init__(self, stream: Stream, pace: Pace) -> None:
        self._stream = stream
        self._pace = pace

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    async def send(self, frame: bytes | bytearray | memoryview) -> None:
        """See the port."""
        if len(frame) <= URGENT_BYTES:
            self._pace.count(len(frame))
        else:
            for start in range(0, len(frame), self._pace.piece_bytes):
                await self._pace.let_pass(min(self._pace.piece_bytes, len(frame) - start))
        await self._stream.send(frame)


def limit_uploads(host: MemoryHost, bits_per_second: float) -> None:
    """From now on the streams of `host` share this limit."""
    pace = Pace(bits_per_second, lambda: asyncio.get_running_loop().time())
    open_stream, handle = host.open_stream, host.handle

    async def opened(peer_id: PeerId, protocol: str, timeout_seconds: float) -> Stream:
        return LimitedStream(await open_stream(peer_id, protocol, timeout_seconds), pace)  # type: ignore[return-value]

    def handled(protocol, handler):
        async def limited(stream: Stream) -> None:
            await handler(LimitedStream(stream, pace))

        handle(protocol, limited)

    host.open_stream, host.handle = opened, handled  # type: ignore[method-assign]


NUM_GOOD = 2
INTERVAL_SECONDS = 6.0
NUM_FRAGMENTS = 2
SEED = 1
STARTING_SECONDS = 45.0
"""Until lines and durations are known."""
MEASURED_SECONDS = 90.0


def scenario_of(**third: Any) -> Scenario:
    """Contributions of 58 kB, one for each of two fragments every 6 s: 155 kbit/s, with nothing reduced."""
    line = {"upload_mbit_per_second": 50, "download_mbit_per_second": 50, "step_seconds": 0.6}
    return Scenario.model_validate(
        {
            "duration_minutes": (STARTING_SECONDS + MEASURED_SECONDS) / 60,
            "workload": {"num_values": 235_000, "learning_rate": 0.1},
            "averaging": {"sync_every": 10, "num_fragments": NUM_FRAGMENTS},
            "groups": {
                "good": {"count": NUM_GOOD, **line, "joins_at_minute": 0.0},
                "third": {"count": 1, **line, "joins_at_minute": 0.05, **third},
            },
        }
    )


@dataclass
class Outcome:
    """Commits as the good peers saw them between start and end."""

    rounds: list[int] = field(default_factory=lambda: [0] * NUM_GOOD)
    num_with_third: int = 0
    num_lost: int = 0
    violations: tuple[str, ...] = ()

    @property
    def fewest(self) -> int:
        """Of a good peer."""
        return min(self.rounds)


def play(spec: SimulationSpec) -> Outcome:
    """Simulate, and look at the good peers from `STARTING_SECONDS` until training ends."""
    third, outcome = simulated_identity(SEED, NUM_GOOD).peer_id, Outcome()

    def note(index: int, event: Event) -> None:
        if index >= NUM_GOOD or not STARTING_SECONDS <= event.at - EPOCH_SECONDS <= STARTING_SECONDS + MEASURED_SECONDS:
            return
        if isinstance(event.fact, RoundCommitted):
            outcome.rounds[index] += 1
            outcome.num_with_third += third in event.fact.contributors
        outcome.num_lost += isinstance(event.fact, WorkLost)

    outcome.violations = simulate(spec, note).violations
    return outcome


def play_third(monkeypatch: pytest.MonkeyPatch, limit_mbit: float | None = None, **third: Any) -> Outcome:
    """The third peer with a line of its own, or with an upload limit that its owner set."""
    if limit_mbit is not None:
        host_of, run_node = Life._host, Life._run_node

        def limited_host(life):
            host = host_of(life)
            if life.profile.group == "third":
                limit_uploads(host, 1e6 * limit_mbit)
            return host

        async def run_limited(life, node, host):
            if life.profile.group == "third":
                node.links.limit(1e6 * limit_mbit, None)
            await run_node(life, node, host)

        monkeypatch.setattr(Life, "_host", limited_host)
        monkeypatch.setattr(Life, "_run_node", run_limited)
    return play(spec_of(scenario_of(**third), SEED))


ME, OTHER, SLOW = (PeerId(name * 20) for name in ("m", "o", "s"))


@pytest.fixture(scope="module")
def usual():
    """Rounds of two good peers with a third that is one, too."""
    return play_third(pytest.MonkeyPatch()).fewest


@pytest.mark.parametrize(("limit_mbit", "contributes"), sampled([(0.125, True), (0.05, False)], one_in=2))
def test_a_low_upload_limit_hinders_nobody(monkeypatch, usual, limit_mbit, contributes):
    """Its contributions alone would take 80 and 200 % of the line's time; the latter brings none here."""
    outcome = play_third(monkeypatch, limit_mbit)
    assert outcome.fewest >= 0.85 * usual
    assert outcome.num_lost == 0
    assert outcome.violations == ()
    assert outcome.num_with_third > 0 or not contributes


def test_a_slow_line_of_which_nobody_says_so_hinders_little(monkeypatch, usual):
    """Here whatever its peer says waits behind its data, as in a router that keeps a long queue."""
    outcome = play_third(monkeypatch, upload_mbit_per_second=0.125)
    assert outcome.fewest >= 0.7 * usual
    assert outcome.violations == ()
    assert outcome.num_with_third > 0


def in_turns(asleep, awake, start, end):
    faults = []
    while start < end:
        faults += [Fault(start, "stall", (NUM_GOOD,)), Fault(start + asleep, "resume", (NUM_GOOD,))]
        start += asleep + awake
    return faults


@pytest.mark.parametrize(
    ("faults", "least_with_third"),
    sampled([(in_turns(15.0, 15.0, 30.0, 135.0), 0.15), (in_turns(140.0, 1.0, 60.0, 61.0), 0.0)], one_in=2),
    ids=["sleeps in turns", "half-open for good"],
)
def test_a_member_that_sleeps_hinders_nobody_and_takes_part_when_it_is_awake(usual, faults, least_with_third):
    spec = spec_of(scenario_of(), SEED)
    spec = replace(spec, faults=tuple(sorted([*spec.faults, *faults], key=lambda fault: fault.at_seconds)))
    outcome = play(spec)
    assert outcome.fewest >= 0.8 * usual
    assert outcome.num_lost == 0
    assert outcome.violations == ()
    assert outcome.num_with_third >= least_with_third * sum(outcome.rounds)


# --- shares ---


@pytest.mark.parametrize("rates", [[0.0, 0.0, 0.5e6], [0.0, 0.5e6, 0.0], [0.0, 0.0, 0.0, 0.2e6], [20e6, 0.0, 0.5e6]])
def test_a_low_limit_is_no_measure_of_lines_that_nobody_knows(rates):
    """9ce67d9 took the one known rate for everybody's, and gave equal shares."""
    shards = plan_shards(470_000, 128, rates, [True] * len(rates))
    slow = min(range(len(rates)), key=lambda index: rates[index] or 1e9)
    assert slow not in {shard.reducer for shard in shards}


def test_a_slow_line_is_measured_with_small_fragments():
    """Two shards of 60 kB side by side over 0.5 Mbit/s: less than the bytes that a fast line has to show."""
    rate = UploadRate()
    for lane in (OTHER, SLOW):
        rate.began(lane, 0.0)
        rate.sent(lane, 60_000, 0.0)
        rate.ended(lane)
    for lane, now in ((OTHER, 1.9), (SLOW, 1.92)):
        rate.acknowledged(lane, 60_000, 0.0, now, now)
    assert rate.bits_per_second == pytest.approx(8 * 120_000 / 1.92, rel=0.01)


def test_a_line_that_stood_still_is_not_slow_for_ever():
    """Two frames took 15 s, because nothing moved; the next one is there at once."""
    rate = UploadRate()
    for began, ended, seconds in ((0.0, 15.0, 15.0), (20.0, 20.05, 0.05)):
        for lane in (OTHER, SLOW):
            rate.began(lane, began)
            rate.sent(lane, 60_000, began)
            rate.ended(lane)
        for lane in (OTHER, SLOW):
            rate.acknowledged(lane, 60_000, began, ended, seconds)
        if ended == 15.0:
            assert rate.bits_per_second == pytest.approx(8 * 120_000 / 15.0)
    assert rate.bits_per_second == 0.0


@pytest.mark.parametrize("read_after", [(0.01, 0.01), (0.01, 1.9)])
def test_answers_that_wait_before_a_remotes_line_make_no_slow_line_here(read_after):
    rate = UploadRate()
    for lane in (OTHER, SLOW):
        rate.began(lane, 0.0)
        rate.sent(lane, 60_000, 0.0)
        rate.ended(lane)
    rate.acknowledged(OTHER, 60_000, 0.0, 0.02 if read_after[1] > 1 else 1.9, read_after[0])
    rate.acknowledged(SLOW, 60_000, 0.0, 1.92, read_after[1])
    assert rate.bits_per_second == 0.0


# --- what fits the line ---


@given(
    st.lists(st.integers(1, 300_000), min_size=1, max_size=9),
    st.floats(1e3, 1e7),
    st.integers(0, 50),
    st.booleans(),
)
def test_a_line_is_never_given_more_than_it_takes_and_never_starves(sizes, each, first, has_aged):
    left, sent, seen = 0.0, 0, set()
    num_rounds = 3 + 2 * len(sizes) * int(1 + max(sizes) / each)
    if num_rounds > 20_000:
        return
    bases = [first] * len(sizes)
    for version in range(first, first + num_rounds):
        chosen, left = chosen_shards(version, sizes, bases, each, left)
        if has_aged:
            bases = [version if position in chosen else base for position, base in enumerate(bases)]
        seen |= chosen
        sent += sum(sizes[position] for position in chosen)
    assert sent <= max(sum(sizes), each) * num_rounds
    if sum(sizes) > each:
        assert sent <= each * num_rounds + max(sizes)
    assert sent > 0
    if sum(sizes) <= each or has_aged:
        assert seen == set(range(len(sizes)))


# --- means that somebody else has ---


def delivery_scene():
    version = [7]
    return Deliveries(lambda _index: version[0]), Result(0, 7, 0, 0, 50), version


def test_a_mean_is_reported_when_somebody_else_has_it():
    async def scenario():
        deliveries, header, _ = delivery_scene()
        read = deliveries.begin(header, bytes(9000), {OTHER, SLOW})
        assert deliveries.has(header, bytes(9000))
        deliveries.note_read(OTHER, (encode(header), bytes(8999) + b"x"))  # that of another attempt
        assert not read.is_set()
        assert not deliveries.has(header, bytes(8999) + b"x")
        deliveries.note_read(OTHER, (encode(header), bytes(9000)))
        assert read.is_set()

    asyncio.run(scenario())


def test_nothing_waits_for_a_round_that_is_over():
    async def scenario():
        deliveries, header, version = delivery_scene()
        read = deliveries.begin(header, bytes(9000), {OTHER, SLOW})
        deliveries.advanced(0, 7)
        assert not read.is_set()
        deliveries.advanced(0, 8)
        assert read.is_set()
        contribution = Contribution(0, 7, 0, OTHER, 0, 1, 0, 50, 10)
        assert not deliveries.is_stale((encode(contribution), bytes(50)))
        version[0] = 8
        assert deliveries.is_stale((encode(contribution), bytes(50)))
        assert not deliveries.is_stale((encode(header), bytes(50)))
        version[0] = 7 + HISTORY_COMMITS + 1
        assert deliveries.is_stale((encode(header), bytes(50)))

    asyncio.run(scenario())


# --- what is queued ---


def test_what_waits_for_a_remote_is_not_queued_again_and_what_is_stale_is_not_sent():
    async def scenario():
        pair = Pair()
        read = []
        pair.sending.watch(
            lambda remote, parts: read.append((remote, parts[0])), lambda parts: parts[0] == contribution(7)
        )
        for number in (5, 5, 6, 7, 5, 6):
            pair.sending.post(B, [contribution(number), PAYLOAD], "data")
        await pair.sending.flush(60.0)
        assert shards(pair.heard) == [5, 6]
        assert {header for _, header in read} == {contribution(5), contribution(6)}
        pair.sending.post(B, [contribution(5), PAYLOAD], "data")  # asked for once more, after it was there
        await pair.sending.flush(60.0)
        assert shards(pair.heard) == [5, 5, 6]
        await pair.close()

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("limits", "announced"), [((0.5e6, None), 0.5e6), ((None, 0.2e6), 0.2e6), ((4e6, 1e6), 1e6), ((None, None), 0.0)]
)
def test_nobody_counts_on_more_than_the_owner_allows(limits, announced):
    """Before anything was measured, and after more was."""

    async def scenario():
        pair = Pair()
        pair.sending.limit(*limits)
        assert pair.sending.traffic.upload_bits_per_second == announced
        pair.post(160)
        await pair.until_heard(160)
        await pair.sending.flush(60.0)
        assert pair.sending._rate.bits_per_second > 4e6
        assert pair.sending.traffic.upload_bits_per_second == (announced or pair.sending._rate.bits_per_second)
        await pair.close()

    run_virtual(scenario())
