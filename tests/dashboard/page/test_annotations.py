"""What happened beside the curves has a name, a place on both axes, and a stranger's words as text only."""

from __future__ import annotations

import json
from dataclasses import replace

from dashboard.observe.shown_manifest import RunNote, run_facts
from dashboard.page.annotations import annotations_of
from dashboard.page.page import render_sections
from dht.identity.speakable import speakable_name
from dht.records.signed_manifest import sign_run_record
from peer.config.access_sections import MAX_NOTE_LENGTH, MAX_NOTES
from peer.config.manifest import RunManifest
from tests.kit.dashboard.records import HOSTILE_NAME, MANIFEST, NOW, OWNER, RUN_ID, TextOnly, empty_state
from tests.kit.dashboard.scene import DAY, history_of_run, peer_id_of, state_of


def test_marks_say_who_and_notes_stand_where_the_run_was() -> None:
    state = state_of()
    assert state.run is not None
    noted = replace(state, run=replace(state.run, notes=(RunNote(NOW - DAY / 2, "raised H to 40"),)))
    history = history_of_run()
    found = annotations_of(noted, history)
    assert [mark.at for mark in found] == sorted(mark.at for mark in found)
    assert {mark.who for mark in found if mark.kind == "join"} == {"Kiran", "نور"}
    note = next(mark for mark in found if mark.kind == "note")
    before, after = (point.tokens for point in history.points[119:121])
    assert before <= note.committed_tokens <= after
    assert (note.text, note.peer_id) == ("raised H to 40", "")
    nameless = replace(history, contributors=())
    left = next(mark for mark in annotations_of(empty_state(), nameless) if mark.kind == "leave")
    assert left.who == speakable_name(peer_id_of(5))


def test_notes_of_a_manifest_are_bounded_and_shown_as_text() -> None:
    changes: list[object] = [
        {"at_version": 0, "note": f"{HOSTILE_NAME} {number}\u202e", "noted_at": NOW + number} for number in range(40)
    ]
    changes += [{"note": "x" * 999, "noted_at": NOW + 99}, {"note": 3, "noted_at": NOW}, {"note": "undated"}, None]
    manifest = json.dumps({**json.loads(MANIFEST), "changes": changes}).encode()
    run = run_facts(sign_run_record(RUN_ID, manifest, OWNER))
    assert len(run.notes) == MAX_NOTES
    assert len(run.notes[-1].text) == MAX_NOTE_LENGTH
    assert run.notes[-2].text == f"{HOSTILE_NAME} 39"
    html = render_sections(replace(state_of(), run=run), history_of_run())["notes"]
    assert HOSTILE_NAME in TextOnly(html).text
    assert "script" not in TextOnly(html).tags


def test_the_unit_of_a_loss_is_what_the_run_predicts() -> None:
    def unit(**fields: object) -> str:
        manifest = json.dumps({**json.loads(MANIFEST), **fields}).encode()
        return run_facts(sign_run_record(RUN_ID, manifest, OWNER)).loss_unit

    assert unit(data={"source": "text:books"}) == "nats per byte"
    assert unit(files=[{"name": "tokenizer.json"}]) == "nats per token"
    assert unit(model={"layout_digest": "ab" * 32}) == ""


def test_the_rate_of_a_run_that_cools_down_is_said() -> None:
    def words_of(*changes: dict[str, object]) -> str:
        fields = {"name": "tinybytes", "changes": changes}
        run = run_facts(sign_run_record(RUN_ID, RunManifest.from_fields(fields).to_bytes(), OWNER))
        return TextOnly(render_sections(replace(state_of(), run=run), history_of_run())["model"]).text

    assert "learning rate" not in words_of()
    begun = {"at_version": 1, "cooldown_from": 234_800_000, "cooldown_tokens": 200_000_000}
    rate = "The learning rate is at 54.9% of its peak now: the organiser started a cool-down, "
    assert f"{rate}which ends at 435 million tokens." in words_of(begun)
    assert "The learning rate is at 100% of its peak now." in words_of({**begun, "cooldown_from": 400_000_000})


def test_an_adapter_is_told_from_a_model() -> None:
    model = {"num_parameters": 2048, "adapter": {"rank": 4}}
    manifest = json.dumps({**json.loads(MANIFEST), "model": model}).encode()
    run = run_facts(sign_run_record(RUN_ID, manifest, OWNER))
    assert run.what == "An adapter of about 2 thousand parameters for a language model"
