"""A run with a past, for tests of the page: made up, but of the shapes and sizes of a real one."""

from __future__ import annotations

import math
from dataclasses import replace

from dashboard.history_facts import (
    ChartMark,
    ContributorRow,
    ContributorView,
    DayOfWork,
    HistoryPoint,
    HistoryView,
    MachineRow,
    ModelSample,
    RoundFacts,
    TaskScore,
    TrafficTotals,
    WorkPoint,
    WrittenText,
)
from dashboard.observe.dashboard_state import DashboardState, fold
from dashboard.observe.listed_peers import Look
from dashboard.observe.shown_manifest import run_facts
from dht.ground.host import PeerId
from dht.records.evaluation import Evaluation
from dht.records.peer_record import RoundTimes
from tests.kit.dashboard.records import NOW, PEERS, RUN_RECORD, bare_record, empty_state

NAMES = ("Ada", "basement-4090", "", "Émilie", "Kiran", "", "نور", "小林", "old laptop", "", "Lindström", "rig of Jo")
DEVICES = ("RTX 4090", "RTX 3060 12GB", "Apple M2 Pro", "RX 7900 XTX", "GTX 1080 Ti", "Ryzen 7 5800X")
COUNTRIES = ("DE", "", "FR", "DE", "IN", "", "DE", "JP", "FR", "FR", "SE", "")
TEAMS = ("Night owls", "", "Kabel & Co", "night owls", "")
DAY = 86_400.0
SCALE = 36
"""The run's size. Its figures follow from each other: a round every six seconds for a day, and four make one pass."""
TOKENS = SCALE * 9_300_000
ROUNDS = SCALE * 408
PACE = 1.08
"""Tokens grow with this power of the time: the swarm grows."""
SPEED = PACE * TOKENS / DAY
"""At the end, tokens per second of all together."""


def peer_id_of(index: int) -> PeerId:
    """Of the first four there are real keys; the rest only look like one."""
    if index < len(PEERS):
        return PEERS[index].peer_id
    letters = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    mixed = [(index + 7) * (place + 11) * 2654435761 % 2**32 for place in range(44)]
    return PeerId("12D3KooW" + "".join(letters[value % 58] for value in mixed))


def state_of(num_peers: int = 12, now: float = NOW) -> DashboardState:
    """A live run of which `num_peers` have been seen; some have left, one is silent."""
    records = []
    weights = [0.0 if index % 9 == 5 else 1 / (1 + index % 5) for index in range(num_peers)]
    for index in range(num_peers):
        record = bare_record(peer_id_of(index), now=now)
        records.append(
            replace(
                record,
                started_at=now - 3600.0 * (1 + index),
                name=NAMES[index % len(NAMES)],
                device=DEVICES[index % len(DEVICES)],
                tokens=round(SCALE * 3.1e6 / (1 + index)),
                rounds_contributed=SCALE * 400 // (1 + index),
                tokens_per_second=SPEED * weights[index] / sum(weights),
                upload_bits_per_second=6.1e6 / (1 + index % 4),
                train_loss=1.62 + 0.013 * (index % 7),
                evaluation=Evaluation(1.7312, 0),
                state="left" if index % 9 == 5 else "training",
                versions=(3673, 3672 if index % 4 else 3671, 3672, 3671),
                digests=(b"a" * 8, b"b" * 8, b"c" * 8, b"d" * 8),
                lineage_tokens=(TOKENS + 300_000, TOKENS + 100_000, TOKENS - 100_000, TOKENS - 300_000),
                reachable=index % 3 != 2,
            )
        )
    state = fold(empty_state(now - 1), Look(now=now - 1, num_members=9, run=run_facts(RUN_RECORD)))
    return replace(fold(state, Look(now=now, num_members=9, records=records)), lanes=lanes_of(now))


def points_of(now: float = NOW, number: int = 240) -> tuple[HistoryPoint, ...]:
    """A loss that falls from 5.3 over a day in which the swarm grows, halves and recovers."""
    found = []
    for index in range(number):
        part = index / (number - 1)
        trainers = round(3 + 8 * part + 3 * math.sin(9 * part)) - (4 if 0.5 < part < 0.58 else 0)
        wobble = 0.05 * math.sin(index * 1.7) + 0.03 * math.sin(index * 5.1)
        found.append(
            HistoryPoint(
                at=now - DAY * (1 - part),
                tokens=round(TOKENS * part**PACE),
                rounds=round(ROUNDS * part),
                validation_loss=1.73 + 3.57 * math.exp(-6 * part) if index % 3 == 0 else None,
                train_loss=1.62 + 3.6 * math.exp(-6.4 * part) + wobble * (1.4 - part),
                num_trainers=trainers,
                num_peers=trainers + 2,
                tokens_per_second=SPEED * part ** (PACE - 1),
                upload_bits_per_second=2.4e6 * trainers * (1 + 0.1 * wobble),
            )
        )
    return tuple(found)


def rounds_of(num_peers: int = 8, now: float = NOW, number: int = 36) -> tuple[RoundFacts, ...]:
    """Rounds every six seconds over four fragments; here and there somebody is late."""
    rounds = []
    for index in range(number):
        ended = now - 2 - 6.0 * index
        is_late = index % 7 == 3
        members = [peer_id_of(member) for member in range(num_peers) if not (is_late and member == 4)]
        rounds.append(
            RoundFacts(
                fragment=(number - index) % 4,
                version=3672 - index // 4,
                seen_at=ended,
                leader=members[index % len(members)],
                tokens=round(4 * 6 * SPEED) - 900 * index,
                contributors=tuple(members),
                num_missed=int(is_late),
                num_void_shards=int(index == 16),
                drop_reasons=(("was late: the deadline passed while its line was sending", 1),) if is_late else (),
            )
        )
    return tuple(rounds)


def lanes_of(now: float = NOW) -> dict[str, tuple[RoundTimes, ...]]:
    """How the members of these rounds spent their time."""
    lanes: dict[str, tuple[RoundTimes, ...]] = {}
    for row in rounds_of(now=now):
        for position, peer_id in enumerate(row.contributors):
            times = RoundTimes(
                fragment=row.fragment,
                version=row.version,
                started_at=row.seen_at - 5.6 + 0.12 * position,
                compute_seconds=2.6 + 0.3 * (position % 3),
                send_seconds=0.7 + 0.25 * (position % 4),
                receive_seconds=0.9,
                apply_seconds=0.25,
            )
            lanes[peer_id] = (*lanes.get(peer_id, ()), times)
    return lanes


def contributor_of(index: int, now: float = NOW) -> ContributorRow:
    num_machines = 3 if index == 1 else 1
    milli = SCALE * 2_900_000_000 // (1 + index)
    machines = tuple(
        MachineRow(
            peer_id=peer_id_of(index + 100 * number),
            device=DEVICES[(index + number) % len(DEVICES)],
            condition="here" if index % 9 != 5 else "left",
            milli_tokens_witnessed=milli // num_machines,
            rounds=max(1, SCALE * 390 // (1 + index)),
            first_at=now - 3 * DAY,
            last_at=now - 4 - 40 * index,
            uptime_seconds=61_000.0 / (1 + index) + 900,
            milli_tokens_reported=106 * milli // 100 // num_machines,
            rounds_missed=index % 4,
        )
        for number in range(num_machines)
    )
    return ContributorRow(
        contributor_id=machines[0].peer_id,
        name=NAMES[index % len(NAMES)] if index < 40 else "",
        country=COUNTRIES[index % len(COUNTRIES)] if index < 40 else "",
        milli_tokens_witnessed=milli,
        milli_tokens_reported=106 * milli // 100,
        share=0.31 / (1 + index),
        rounds=max(1, SCALE * 390 // (1 + index)),
        rounds_missed=index % 4,
        first_at=now - 3 * DAY,
        last_at=now - 4 - 40 * index,
        is_here=index % 9 != 5,
        machines=machines,
        rank=index + 1,
        team=TEAMS[index % len(TEAMS)] if index < 40 else "",
    )


def samples_of(now: float = NOW, number: int = 9) -> tuple[ModelSample, ...]:
    """What a model of bytes of Python wrote, from noise to something like code; the time between them doubles."""
    texts = (
        "e\ufffd 0t(=,ns  ae)i_r:\n t.s ee'\n(rt  n,o_fed  self",
        "_self(self, selt, sef):\n    def retun self.s\n    if self ine:",
        "main(args):\n    for name in sorted(os.listdir(path)):\n        yield name\n\n\n"
        "def close(self):\n    self._file = None",
    )
    found = []
    for index in range(number):
        part = index / (number - 1)
        prompt = WrittenText("def ", texts[min(2, 3 * index // number)])
        alone = WrittenText("", "\n# the " + texts[min(2, 3 * index // number)])
        at = now - 600 - (DAY - 600) * (1 - (2**index - 1) / (2 ** (number - 1) - 1))
        version, tokens, loss = round(ROUNDS // 4 * part) + 1, round(TOKENS * part) + 900, 5.3 - 3.57 * part
        found.append(ModelSample(at, version, tokens, loss, (prompt, alone)))
    return tuple(found)


def scores_of(number: int = 7) -> tuple[TaskScore, ...]:
    """Two tasks, measured now and then."""
    found = []
    for index in range(number):
        part = index / (number - 1)
        tokens, version = round(TOKENS * part) + 900, round(ROUNDS // 4 * part) + 1
        found.append(TaskScore("arc_easy", "acc", 0.25 + 0.3 * part**0.6, 0.01, 2376, tokens, version))
        found.append(TaskScore("lambada", "perplexity", 9000.0 * 0.02**part, None, 500, tokens, version))
    return tuple(found)


def history_of_run(num_contributors: int = 12, now: float = NOW) -> HistoryView:
    """What a dashboard knows of this run after a day."""
    contributors = tuple(contributor_of(index, now) for index in range(num_contributors))
    marks = (
        ChartMark(now - 0.83 * DAY, SCALE * 650_000, "join", peer_id_of(4)),
        ChartMark(now - 0.5 * DAY, SCALE * 4_050_000, "leave", peer_id_of(5)),
        ChartMark(now - 0.42 * DAY, SCALE * 4_900_000, "join", peer_id_of(6)),
        ChartMark(now - 0.2 * DAY, SCALE * 7_100_000, "revision", ""),
    )
    return HistoryView(
        now=now,
        started_at=now - DAY,
        contributors=contributors,
        num_unverified=2,
        points=points_of(now),
        marks=marks,
        rounds=rounds_of(now=now),
        bandwidth=TrafficTotals(4.31e9, 5.93e12),
        num_rounds=ROUNDS,
        milli_tokens_witnessed=SCALE * 8_900_000_000,
        samples=samples_of(now),
        scores=scores_of(),
        storage="It keeps its history in a file, so the history survives restarts.",
    )


def contributor_view(index: int = 1, now: float = NOW) -> ContributorView:
    row = contributor_of(index, now)
    curve = tuple(
        WorkPoint(now - 3600.0 * (30 - hour), row.tokens_witnessed * hour / 30, row.tokens_reported * hour / 30, hour)
        for hour in range(31)
    )
    today = int(now // DAY)
    # Some days off, and no two alike.
    days = tuple(
        DayOfWork(today - ago, row.milli_tokens_witnessed // 90 * (1 + (ago * 7) % 5), 1 + ago % 4)
        for ago in range(130, -1, -1)
        if ago % 11 not in (3, 4)
    )
    others = contributor_of(index - 1, now) if index else None, contributor_of(index + 1, now)
    return ContributorView(row, curve, rounds_of(now=now)[:10], 12, days, *others, num_witnesses=4)
