"""`peer status`: what a run looks like from outside."""

from __future__ import annotations

import dataclasses

import pytest

from dht.ground.host import PeerId
from dht.identity.speakable import speakable_name
from dht.records.evaluation import Evaluation
from dht.records.peer_record import PeerRecord
from peer.config.learning_rate_schedule import ScheduleSection
from peer.config.manifest import RunManifest
from peer.config.model_section import ModelSection
from peer.observe.observer import _why
from peer.observe.status import _print_table, status_facts
from peer.view.run_view import run_view_of
from tests.kit.records import NOW, RUN_ID, anchored
from tests.simulator.scenarios.spec import tiny_manifest

MANIFEST = tiny_manifest(0)


def records_of(**digests: bytes) -> list[PeerRecord]:
    found = [anchored(name, 9, digest, 100) for name, digest in digests.items()]
    return [dataclasses.replace(record, expires_at=1e12) for record in found]


def test_a_peer_with_another_anchor_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    records = records_of(A=b"z", B=b"b", C=b"b")
    facts = status_facts(RUN_ID, MANIFEST, records, NOW)
    assert [peer["differing_fragments"] for peer in facts["peers"]] == [[1], [], []]
    _print_table(RUN_ID, MANIFEST, records)
    shown = capsys.readouterr().out
    assert shown.count("0/9!") == 1
    assert "a different anchor" in shown
    _print_table(RUN_ID, MANIFEST, records_of(A=b"b", B=b"b"))
    assert "!" not in capsys.readouterr().out


def test_a_command_to_copy_is_not_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    _print_table(RUN_ID, MANIFEST, [])
    assert f"peer join --run-id {RUN_ID}" in capsys.readouterr().out


def test_a_name_stays_on_one_line_where_the_table_is_too_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    records = [
        dataclasses.replace(record, name="", versions=(123, 124), device="a processor with a long name of its own")
        for record in records_of(A=b"b", B=b"b")
    ]
    _print_table(RUN_ID, MANIFEST, records)
    lines = capsys.readouterr().out.splitlines()
    for record in records:
        assert any(line.startswith(speakable_name(record.peer_id)) for line in lines)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_table_is_read_whole_on_any_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    versions = (1_234_565, 1_234_566)
    records = [
        dataclasses.replace(one, name="", versions=versions, device="cpu, 2 threads of 16", tokens=123_456_789)
        for one in records_of(A=b"bbbb", B=b"bbbb")
    ]
    _print_table(RUN_ID, MANIFEST, records)
    shown = capsys.readouterr().out
    assert "\u2026" not in shown
    heading = next(line for line in shown.splitlines() if line.startswith("peer"))
    assert heading.split()[0] == "peer"
    assert {"state", "versions", "tokens", "loss"} <= set(heading.split())
    assert ("device" in heading) == (columns == 120)
    rows = [line for line in shown.splitlines() if "1234565/1234566" in line and records[0].state in line]
    assert len(rows) == len(records)


def test_one_record_does_not_decide_what_the_status_says(capsys: pytest.CaptureFixture[str]) -> None:
    lies = {"versions": (2**53 - 1, 2**53 - 1), "lineage_tokens": (2**60, 2**60), "evaluation": Evaluation(0.0001, 9)}
    honest = [dataclasses.replace(one, evaluation=Evaluation(2.4, 9)) for one in records_of(A=b"b", B=b"b")]
    liar = dataclasses.replace(honest[0], peer_id=PeerId("C"), tokens=2**62, tokens_per_second=1e18, **lies)
    free = [dataclasses.replace(liar, peer_id=PeerId(f"D{number}")) for number in range(10)]
    # One liar among three, or any number of records beside the signed work of others.
    by_work = run_view_of([*honest, *free], {one.peer_id: 5 for one in honest})
    for records, view in (([*honest, liar], None), ([*honest, *free], by_work)):
        facts = status_facts(RUN_ID, MANIFEST, records, NOW, view)
        assert (facts["versions"], facts["committed_tokens"], facts["evaluation"]["loss"]) == ([0, 9], 100, 2.4)
        assert facts["tokens_per_second"] < 1000
    assert facts["num_training"] == 2
    _print_table(RUN_ID, MANIFEST, [*honest, *free], by_work)
    shown = capsys.readouterr().out
    assert " trainers 2  versions 0/9 " in shown
    assert "2 of 12 members have work in signed rounds" in shown


def test_a_custom_run_invites_to_its_code_and_not_to_peer_join(capsys: pytest.CaptureFixture[str]) -> None:
    model = ModelSection(num_parameters=10, layout_digest="ab" * 32)
    code = f"https://example.org/team/code@{'0' * 40}"
    manifest = RunManifest(name="own", model=model, code=code)
    facts = status_facts(RUN_ID, manifest, [], NOW)
    assert (facts["model_kind"], facts["code"], facts["files"]) == ("custom", code, [])
    _print_table(RUN_ID, manifest, [])
    shown = " ".join(capsys.readouterr().out.split())
    assert code in shown
    assert "peer join" not in shown
    _print_table(RUN_ID, MANIFEST, [])
    assert "peer join --run-id" in capsys.readouterr().out


def test_the_runs_clock_its_budget_and_the_rate_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    schedule = ScheduleSection(kind="cosine", tokens=200)
    training = MANIFEST.training.model_copy(update={"schedule": schedule})
    manifest = MANIFEST.model_copy(update={"training": training})
    facts = status_facts(RUN_ID, manifest, records_of(A=b"b", B=b"b"), NOW)
    assert (facts["committed_tokens"], facts["budget_tokens"], facts["progress"]) == (100, 200, 0.5)
    assert facts["learning_rate_factor"] == pytest.approx(0.55)
    _print_table(RUN_ID, manifest, records_of(A=b"b", B=b"b"))
    shown = " ".join(capsys.readouterr().out.split())
    assert "100 tokens, 50.0% of 200" in shown


def test_why_nobody_answers_is_a_plain_word_for_each_address() -> None:
    dialled = "failed to dial: all dials failed * [/ip4/127.0.0.1/tcp/1] dial tcp 127.0.0.1:1: connect: {}"
    faults = {"/a": dialled.format("network is unreachable"), "/b": "peer id mismatch", "/c": "?", "/d": "?"}
    assert _why(faults) == " (/a: network is unreachable; /b: a different peer answers there; /c: no answer and 1 more)"
    assert _why({}) == ""
