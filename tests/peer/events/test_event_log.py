"""Events: JSON round trip, hostile lines, sentences, and a log that outlives a full disk."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from averaging.rounds.round_facts import Fact, OfVersion, RoundCommitted
from dht.ground.host import PeerId
from peer.events.anchor_events import Fetched
from peer.events.event_log import EVENT_TYPES, MAX_LINE_BYTES, from_json, to_json
from peer.events.log_tail import last_events, work_in_log
from peer.events.peer_events import (
    Event,
    JoinedRun,
    LeftRun,
    MemberChanged,
    PartRestarted,
    SwarmContact,
    TrainingProgressed,
)
from peer.events.rotating_log import MAX_PENDING_LINES, LineLog

COUNTS = st.integers(0, 2**60)
FLOATS = st.floats(0, 1e15)
TEXTS = st.text(max_size=30)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": COUNTS,
    "bool": st.booleans(),
    "str": TEXTS,
    "PeerId": TEXTS,
    "PeerId | None": st.none() | TEXTS,
    "float": FLOATS,
    "int | None": st.none() | COUNTS,
    "float | None": st.none() | FLOATS,
    "tuple[int, ...]": st.lists(COUNTS, max_size=5).map(tuple),
    "tuple[PeerId, ...]": st.lists(TEXTS, max_size=5).map(tuple),
    "tuple[str, ...]": st.lists(TEXTS, max_size=5).map(tuple),
}


def events_of(path: Path) -> list[Event]:
    return last_events(path, 10**6)[0]


def any_of(kind: type[Fact]) -> st.SearchStrategy[Event]:
    fact = st.builds(kind, **{field.name: VALUES[str(field.type)] for field in dataclasses.fields(kind)})
    return st.builds(Event, FLOATS, TEXTS, fact)


events = st.one_of([any_of(kind) for kind in EVENT_TYPES.values()])


GOLDEN = Path(__file__).parents[2] / "golden" / "events.jsonl"
"""Of each kind a line with all fields, one without those that have a default, and the words that are drawn from a
list; below each line its sentence."""
WORDS = {
    "awaited": ("quorum", "offer", "contribution", "first mean", "mean", "result"),
    "cause": ("late", "fork", "withheld"),
    "part": ("daemon", "network"),
    "state": ("waiting", "lost", "found"),
    "path": ("direct", "punched", "relayed"),
    "own_relay": ("full", "limited", "none"),
}


def sample(kind: type[Fact], *, with_defaults: bool) -> Fact:
    """One fact of a kind, with different values in all fields."""
    values: dict[str, Any] = {}
    for number, field in enumerate(dataclasses.fields(kind), start=2):
        if field.default is not dataclasses.MISSING and not with_defaults:
            continue
        peers = (f"12D3KooW{field.name:>08}", f"12D3KooW{number:08}")
        values[field.name] = {
            "int": 3 + number,
            "int | None": 3 + number,
            "bool": with_defaults,
            "str": field.name,
            "PeerId": peers[0],
            "PeerId | None": peers[0],
            "float": 1.25 + number,
            "float | None": None if with_defaults else 2.5 + number,
            "tuple[int, ...]": (number, 9),
            "tuple[PeerId, ...]": peers,
            "tuple[str, ...]": (f"/ip4/1.2.3.4/tcp/{number}/p2p/x", field.name),
        }[str(field.type)]
    return kind(**values)


def test_lines_and_sentences_stay_as_they_are(regenerate_golden: bool) -> None:
    samples: list[Fact] = []
    for _, kind in sorted(EVENT_TYPES.items()):
        whole = sample(kind, with_defaults=True)
        samples += dict.fromkeys([whole, sample(kind, with_defaults=False)])
        drawn = [field.name for field in dataclasses.fields(kind) if field.name in WORDS]
        samples += [dataclasses.replace(whole, **{name: word}) for name in drawn for word in WORDS[name]]
    told = [Event(1.25, PeerId("12D3KooW0peer_id"), fact) for fact in samples]
    found = [line for event in told for line in (to_json(event), event.sentence())]
    if regenerate_golden:
        GOLDEN.write_text("\n".join(found) + "\n")
    assert GOLDEN.read_text().splitlines() == found, (
        "events say something else now; where you mean it, run pytest --regenerate-golden tests/peer/events and read "
        "what git diff shows"
    )
    for line, sentence in zip(found[::2], found[1::2], strict=True):
        event = from_json(line)
        assert (to_json(event), event.sentence()) == (line, sentence)


def left(reason: str) -> Event:
    return Event(1.5, PeerId("me"), MemberChanged(remote=PeerId("12D3KooWabcdefgh"), reason=reason))


@given(events)
def test_json_round_trip_on_one_line(event: Event) -> None:
    line = to_json(event)
    assert "\n" not in line
    assert from_json(line) == event
    assert from_json(line.encode()) == event
    fields = json.loads(line)
    assert (fields["schema"], fields["event"], fields["at"]) == (1, type(event.fact).__name__, event.at)


@given(events)
def test_every_event_is_one_sentence(event: Event) -> None:
    sentence = event.sentence()
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert sentence.isprintable()


def test_the_list_of_types_is_complete() -> None:
    described = {event_type.__name__ for event_type in (*Fact.__subclasses__(), *OfVersion.__subclasses__())}
    assert set(EVENT_TYPES) == described - {"OfVersion"}


def test_numbers_that_json_cannot_say_become_null() -> None:
    progress = Event(
        1.0,
        PeerId("me"),
        TrainingProgressed(
            inner_steps=1,
            tokens=8,
            train_loss=math.nan,
            tokens_per_second=math.inf,
            wait_fraction=0.0,
        ),
    )
    read = from_json(to_json(progress))
    assert isinstance(read.fact, TrainingProgressed)
    assert read.fact.train_loss is None
    assert math.isnan(read.fact.tokens_per_second)
    assert "loss not a number" in read.sentence()
    assert "unknown tokens/s" in read.sentence()
    # A peer that has come back and has made no step yet.
    back = TrainingProgressed(inner_steps=730, tokens=8, train_loss=None, tokens_per_second=0.0, wait_fraction=0.0)
    assert back.sentence().startswith("Inner step 730: no loss so far in this session, 8 tokens")


ANN, BEN = PeerId("12D3KooWann"), PeerId("12D3KooWben")


def told(fact: Fact, peer_id: PeerId = ANN) -> str:
    return to_json(Event(1.0, peer_id, fact))


def joined(run_id: str, tokens: int, rounds: int) -> JoinedRun:
    return JoinedRun(run_id, "cpu", 9, (0,), earlier_tokens=tokens, earlier_rounds=rounds)


def progressed(tokens: int) -> TrainingProgressed:
    return TrainingProgressed(1, tokens, None, 1.0, 0.0)


def committed(*contributors: PeerId) -> RoundCommitted:
    return RoundCommitted(0, 1, contributors, 0.7, 9, 0, 1.0, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], (0, 0)),
        # It was killed: what it did since it joined, and before.
        (
            [
                *(told(joined("run", 500, 3)), told(progressed(700)), told(committed(ANN, BEN)), told(committed(BEN))),
                *(told(progressed(900)), told(committed(ANN)), '{"cut o'),
            ],
            (900, 5),
        ),
        # Earlier sessions are in the count of the newest one; it stopped before its first step.
        ([told(progressed(100)), told(committed(ANN)), told(joined("run", 900, 5))], (900, 5)),
        ([told(joined("run", 0, 0)), told(committed(ANN)), told(LeftRun("asked to", 4, 950, 6))], (950, 6)),
        # Another run, or another peer, had the folder.
        ([told(joined("other", 500, 3)), told(progressed(700))], (0, 0)),
        ([told(joined("run", 500, 3), BEN), told(progressed(700), BEN)], (0, 0)),
        # The beginning of a long session is not there any more.
        ([told(committed(ANN)), told(progressed(700))], (700, 1)),
    ],
)
def test_a_log_knows_the_work_of_a_peer_that_was_killed(
    lines: list[str], expected: tuple[int, int], tmp_path: Path
) -> None:
    log = tmp_path / "events.jsonl"
    if lines:
        log.write_text("\n".join(lines) + "\n")
    assert work_in_log(log, "run", ANN) == expected


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_garbage_lines_give_a_value_error_and_nothing_else(line: str | bytes) -> None:
    with pytest.raises(ValueError, match="event line"):
        from_json(line)


@given(events, st.data())
def test_a_wrong_field_is_named(event: Event, data: st.DataObject) -> None:
    fields = json.loads(to_json(event))
    name = data.draw(st.sampled_from([name for name in fields if name not in ("schema", "event")]))
    wrong = [{}, [None], *([] if isinstance(fields[name], bool) else [True])]
    fields[name] = data.draw(st.sampled_from(wrong))
    with pytest.raises(ValueError, match=rf"{fields['event']}\.{name} is"):
        from_json(json.dumps(fields))
    optional = {field.name for field in dataclasses.fields(event.fact) if field.default is not dataclasses.MISSING}
    assume(name not in optional)  # these may be left out, by older software
    del fields[name]
    with pytest.raises(ValueError, match=f"lacks the field {name}"):
        from_json(json.dumps(fields))


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        " " * (MAX_LINE_BYTES + 1),
        '{"schema":2,"event":"MemberChanged"}',
        '{"schema":1,"event":[]}',
        "NaN",
    ],
)
def test_hostile_lines(line: str) -> None:
    with pytest.raises(ValueError, match="event line"):
        from_json(line)


def test_fields_of_later_software_are_ignored() -> None:
    line = to_json(left("bye"))[:-1] + ',"country":"XX"}'
    assert from_json(line) == left("bye")


def test_a_line_cut_by_a_crash_is_not_glued_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(to_json(left("whole")) + "\n" + to_json(left("cut"))[:20])
    log = LineLog(path, pytest.fail)
    log.append(to_json(left("new")))
    log.close()
    assert events_of(path) == [left("whole"), left("new")]
    assert len(path.read_text().splitlines()) == 3


def test_a_full_disk_costs_one_warning_and_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    warnings: list[str] = []
    real_write = os.write
    free = [40]

    def write(file: int, data: Any) -> int:
        if free[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real_write(file, bytes(data)[: free[0]])
        free[0] -= written
        return written

    log = LineLog(path, warnings.append)
    monkeypatch.setattr(os, "write", write)
    for number in range(4):
        log.append(to_json(left(str(number))))
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]
    assert path.stat().st_size == 40
    free[0] = 10**9
    log.append(to_json(left("4")))
    log.close()
    assert "nothing was lost" in warnings[1]
    assert len(warnings) == 2
    assert events_of(path) == [left(str(number)) for number in range(5)]


def test_an_unwritable_folder_keeps_the_newest_events(tmp_path: Path) -> None:
    blocked = tmp_path / "folder"
    blocked.write_text("a file where a folder should be")
    warnings: list[str] = []
    log = LineLog(blocked / "events.jsonl", warnings.append)
    for number in range(MAX_PENDING_LINES + 5):
        log.append(to_json(left(str(number))))
    assert len(warnings) == 1
    blocked.unlink()
    log.append(to_json(left("last")))
    log.close()
    assert "6 lines were lost" in warnings[1]
    read = events_of(blocked / "events.jsonl")
    assert read[0] == left("6")
    assert read[-1] == left("last")
    assert len(read) == MAX_PENDING_LINES


def test_a_log_is_for_its_owner_alone_whatever_it_was(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("")
    path.chmod(0o644)
    for name in (path, tmp_path / "new.jsonl"):
        log = LineLog(name, lambda sentence: pytest.fail(sentence))
        log.append("{}")
        log.close()
        assert name.stat().st_mode & 0o777 == 0o600


def test_a_log_takes_twice_its_bound_at_most(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = LineLog(path, lambda sentence: pytest.fail(sentence), max_bytes=1000)
    for number in range(1000):
        log.append(f"{number:099}")
    log.close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["events.jsonl", "events.jsonl.1"]
    kept = [line for name in ("events.jsonl.1", "events.jsonl") for line in (tmp_path / name).read_text().splitlines()]
    assert [int(line) for line in kept] == list(range(1000 - len(kept), 1000))
    assert 10 <= len(kept) <= 20
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o600 for name in ("events.jsonl", "events.jsonl.1"))
    # One that goes on later counts what is there.
    log = LineLog(path, lambda sentence: pytest.fail(sentence), max_bytes=1000)
    for number in range(1000, 1020):
        log.append(f"{number:099}")
    log.close()
    assert path.stat().st_size <= 1100


def test_a_deleted_log_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "data" / "events.jsonl"
    log = LineLog(path, lambda sentence: pytest.fail(sentence))
    log.append("one")
    path.unlink()
    path.parent.rmdir()
    log.append("two")
    log.close()
    assert path.read_text() == "two\n"


def test_a_pipe_in_place_of_the_log_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    told: list[str] = []
    log = LineLog(tmp_path / "events.jsonl", told.append)
    for number in range(3):
        log.append(str(number))
    assert len(told) == 1
    assert "is a pipe or a device" in told[0]
    (tmp_path / "events.jsonl").unlink()
    log.append("3")
    log.close()
    assert (tmp_path / "events.jsonl").read_text().split() == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("fact", "training", "waiting"),
    [
        (SwarmContact("lost", 90.0), "training continues alone", "this peer keeps looking for them"),
        (PartRestarted("network", "it was killed"), "training continued", "killed"),
        (PartRestarted("daemon", seconds=90.0), "training continued", "was restarted"),
    ],
)
def test_no_sentence_says_that_training_goes_on_while_a_peer_catches_up_or_seeds(
    fact: Fact, training: str, waiting: str
) -> None:
    assert training in fact.sentence()
    told = Event(1.0, PeerId("me"), dataclasses.replace(fact, is_training=False))  # type: ignore[call-arg]
    idle = from_json(to_json(told))
    assert "training" not in idle.sentence()
    assert waiting in idle.sentence()


@pytest.mark.parametrize(
    ("fact", "sentence"),
    [
        (JoinedRun("x", "cpu", 9, (0, 0)), "Joined x on cpu with 9 parameters, before the first round."),
        (JoinedRun("x", "cpu", 9, (1, 0)), "Joined x on cpu with 9 parameters, after 1 round of the run."),
        (JoinedRun("x", "seed", 9, (9, 8)), "Joined x as a seed with 9 parameters, after 17 rounds of the run."),
        (LeftRun("asked to stop", 0, 0, 0), "Left the run (asked to stop)."),
        (LeftRun("x", 1, 64, 0), "Left the run (x) after 1 step, 64 tokens and contributions to 0 rounds."),
        (Fetched(12, 0.5, (PeerId("y"),), (0, 1)), "Caught up with 2 parts of the model from y: 12 B in 0.5 s."),
    ],
)
def test_what_a_volunteer_reads_first_and_last_has_no_jargon(fact: Fact, sentence: str) -> None:
    assert fact.sentence() == sentence
