"""What is recorded of a peer and of a run."""

from __future__ import annotations

from averaging.rounds.round_facts import AppliedCommit, Fact, RoundCommitted
from dht.ground.host import PeerId
from peer.events.peer_events import Evaluated, Event, JoinedRun, LeftRun, TrainingProgressed
from peer.tracking.recorded_rows import OWN_COLUMNS, RUN_COLUMNS, OwnRows, Row, RunRows

ME = PeerId("12D3KooWme")


def rows_of(*facts: Fact) -> list[Row]:
    rows = OwnRows()
    found = [rows.row(Event(float(at), ME, fact)) for at, fact in enumerate(facts)]
    return [row for row in found if row is not None]


def progressed(steps: int, loss: float | None = 2.5) -> TrainingProgressed:
    return TrainingProgressed(steps, 100 * steps, loss, 50.0, 0.25, run_tokens=7000, learning_rate=0.003)


def committed(seconds: float) -> RoundCommitted:
    return RoundCommitted(0, 3, (ME,), 0.7, 100, 0, seconds, 10, 20, 1, 1)


def test_a_row_comes_with_each_report_that_has_something_new() -> None:
    joined = JoinedRun("run", "cpu", 10, (3, 4))
    applied = AppliedCommit(fragment=1, version=5, digest=b"d")
    first, second, last = rows_of(
        *(joined, committed(1.0), committed(3.0), applied, Evaluated(2.25, 8), progressed(4), progressed(4)),
        *(progressed(9), Evaluated(2.0, 9), LeftRun("x", 9, 900, 0)),
    )
    assert first == Row(
        4,
        5.0,
        {
            "loss": 2.5,
            "validation_loss": 2.25,
            "learning_rate": 0.003,
            "tokens": 400.0,
            "tokens_per_second": 50.0,
            "wait_fraction": 0.25,
            "run_tokens": 7000.0,
            "versions": 8.0,
            "rounds": 2.0,
        },
    )
    assert set(first.values) == set(OWN_COLUMNS)
    assert (second.step, last.step, last.values["validation_loss"]) == (9, 9, 2.0)


def test_what_is_no_number_is_absent() -> None:
    (row,) = rows_of(progressed(4, loss=None))
    assert "loss" not in row.values


def test_a_run_has_a_row_when_more_is_committed_and_not_too_often() -> None:
    rows = RunRows()
    values: dict[str, float | None] = dict.fromkeys(RUN_COLUMNS, 1.0)
    first = rows.row(100.0, {**values, "tokens": 50, "validation_loss": None, "train_loss": float("nan")})
    assert first is not None
    assert (first.step, first.values["tokens"]) == (50, 50.0)
    assert not {"validation_loss", "train_loss"} & set(first.values)
    assert rows.row(105.0, {**values, "tokens": 60}) is None
    assert rows.row(111.0, {**values, "tokens": 50}) is None
    assert rows.row(111.0, {**values, "tokens": 60}) is not None
