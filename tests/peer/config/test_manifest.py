"""RunManifest: canonical bytes, hash, and sentences for everything that can be wrong with one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dht.ground.errors import Incompatible, UsageFault
from dht.identity.keys import Identity, make_run_id
from dht.records.signed_manifest import RunRecord, sign_run_record
from peer.config.data_source import DataSection
from peer.config.manifest import MAX_MANIFEST_BYTES, AveragingSection, RunManifest
from peer.config.model_section import ModelSection
from peer.config.training_section import TrainingSection
from peer.network.membership.manifest_revisions import manifest_of
from peer.network.membership.run_finding import refuse_two_manifests

DEFAULT = RunManifest(name="demo")
PRINTABLE = st.text(st.characters(exclude_categories=["C"]), max_size=500)

manifests = st.builds(
    RunManifest,
    name=st.from_regex(r"[a-z0-9-]{1,40}", fullmatch=True),
    seed=st.integers(0, 2**53 - 1),
    description=PRINTABLE,
    model=st.builds(ModelSection, num_layers=st.integers(1, 512)),
    data=st.builds(DataSection, text_field=PRINTABLE.filter(len).map(lambda name: name[:100])),
    training=st.builds(TrainingSection, learning_rate=st.floats(1e-300, 10)),
    averaging=st.builds(AveragingSection, outer_lr=st.floats(1e-9, 10), mode=st.sampled_from(["sync", "eager"])),
)


def canonical(fields: object) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def changed(path: str, value: object) -> bytes:
    fields = json.loads(DEFAULT.to_bytes())
    *sections, last = path.split(".")
    target = fields
    for section in sections:
        target = target[section]
    target[last] = value
    return canonical(fields)


@given(manifests)
def test_bytes_round_trip_and_are_canonical(manifest: RunManifest) -> None:
    data = manifest.to_bytes()
    assert RunManifest.from_bytes(data) == manifest
    assert data == canonical(json.loads(data))
    assert len(data) <= MAX_MANIFEST_BYTES
    assert manifest.hash == hashlib.sha256(data).digest()


@given(st.integers(0, len(DEFAULT.to_bytes()) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_makes_another_run(position: int, mask: int) -> None:
    data = bytearray(DEFAULT.to_bytes())
    data[position] ^= mask
    try:
        read = RunManifest.from_bytes(bytes(data))
    except ValueError:
        return
    assert read.hash != DEFAULT.hash


@given(st.binary(max_size=300) | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(canonical))
def test_garbage_gives_a_value_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"manifest|got|expected"):
        RunManifest.from_bytes(data)


@pytest.mark.parametrize(
    "data", [b"[" * 12_000, b'{"a":' * 2000, b"9" * 12_000, b"NaN", b"\xff\xfe[\x00", b"\xef\xbb\xbf{}"]
)
def test_hostile_json_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="manifest is not JSON"):
        RunManifest.from_bytes(data)


def test_too_long_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ValueError, match=f"expected at most {MAX_MANIFEST_BYTES}"):
        RunManifest.from_bytes(b"[" * (MAX_MANIFEST_BYTES + 1))


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("name", "My Run", "name is 'My Run'; expected something like my-run"),
        ("averaging.sync_evry", 3, "sync_evry is not a field in averaging; did you mean sync_every?"),
        ("learning_rate", 0.1, "learning_rate is not a field at the top level; it belongs in the section training."),
        ("model.seed", 0, "seed is not a field in model; it belongs at the top level."),
        ("model.num_layers", "4", "model.num_layers is '4'; expected a whole number from 1 to 512."),
        ("model.num_layers", True, "model.num_layers is true; expected a whole number from 1 to 512."),
        ("model", 3, "model is 3; expected a section with the fields num_layers,"),
        ("averaging.mode", "fast", "averaging.mode is 'fast'; expected one of sync, streaming, eager, carry."),
        ("averaging.codec", "int8", "averaging.codec is 'int8'; expected one of int4, fp32."),
        ("averaging.scale", "fp16", "averaging.scale was removed; remove it; scales are bfloat16."),
        ("training.optimizer", "sgd", "training.optimizer is 'sgd'; expected one of adamw, muon."),
        ("model.num_heads", 3, "model: d_model is 128 with num_heads 3; expected d_model to be a multiple of 6"),
        ("model.kind", "custom", "model.kind was removed; remove it; config, or num_parameters and layout"),
        ("model.num_parameters", 5, "expected both num_parameters and layout_digest"),
        ("model.num_buffer_values", 5, "num_buffer_values are given for the built-in model; expected neither"),
        ("format_version", 3, "format_version was removed; remove it; only the number in rules"),
        ("seed", 10**400, "seed is a whole number of 1329 bits; expected a whole number from 0 to"),
        ("training.learning_rate", 10**400, "training.learning_rate is a whole number of 1329 bits; expected a finite"),
        ("data.source", "http://x", "data.source is 'http://x'; expected something like stdlib: or text:"),
        ("data.source", "text:a\x1b[2J", "is a path that would be read on every volunteer's machine"),
        ("description", "two\nlines", "expected something like one line of printable text"),
    ],
)
def test_faults_name_the_field_the_value_and_what_is_expected(path: str, value: object, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is the subject of the test)
        RunManifest.from_bytes(changed(path, value))
    assert sentence in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_field_or_other_order_is_not_canonical() -> None:
    fields = json.loads(DEFAULT.to_bytes())
    reversed_keys = json.dumps(dict(reversed(fields.items())), separators=(",", ":")).encode()
    del fields["seed"]
    for data in (canonical(fields), reversed_keys, DEFAULT.to_bytes() + b" "):
        with pytest.raises(ValueError, match="not in canonical form"):
            RunManifest.from_bytes(data)


def test_every_field_says_what_it_is_and_has_a_default() -> None:
    def check(model: type[BaseModel]) -> None:
        for name, field in model.model_fields.items():
            annotation: Any = field.annotation
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                check(annotation)
                continue
            assert field.description, f"{model.__name__}.{name} has no description"
            assert not field.is_required() or name == "name", f"{model.__name__}.{name} has no default"

    check(RunManifest)


def test_toml_is_read_with_the_name_given(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    # With the mark that some editors write, and their ends of lines.
    path.write_text('\ufeffname = "other"\r\n[averaging]\nsync_every = 50\nouter_lr = 0.5\n')
    manifest = RunManifest.load_toml(path, name="mine")
    assert (manifest.name, manifest.averaging.sync_every) == ("mine", 50)
    assert RunManifest.from_bytes(manifest.to_bytes()) == manifest


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[averaging]\nsync_evry = 50", "did you mean sync_every?"),
        ("[averaging\n", "is not a TOML file"),
        ("[goal]\ntokens = 5", "goal was removed; write the tokens"),
        ('page = "run.example.org"', "page is 'run.example.org'; expected something like https://example.org/"),
        ("seed = 1.5", "seed is 1.5; expected a whole number"),
        ("[training]\nlearning_rate = nan", "training.learning_rate is nan; expected a finite number"),
    ],
)
def test_toml_faults_are_one_sentence_with_the_path(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(UsageFault) as caught:
        RunManifest.load_toml(path, name="demo")
    assert str(path) in str(caught.value)
    assert sentence in str(caught.value)


def test_the_page_is_the_one_that_its_owner_said_last() -> None:
    made = RunManifest.from_fields({"name": "mine", "page": "https://run.example.org/r/mine/"})
    assert made.page_address == "https://run.example.org/r/mine/"
    moved = RunManifest.from_fields(
        {
            **made.model_dump(mode="json"),
            "revision": 2,
            "changes": [{"at_version": 0, "page": "https://new.example.org"}],
        }
    )
    assert moved.page_address == "https://new.example.org"
    assert RunManifest.from_bytes(moved.to_bytes()).hash == made.hash  # members of both revisions are in one run
    gone = RunManifest.from_fields({**moved.model_dump(mode="json"), "changes": [{"at_version": 0, "page": ""}]})
    assert gone.page_address is None


def test_an_unreadable_file_is_a_usage_fault(tmp_path: Path) -> None:
    garbled = tmp_path / "garbled.toml"
    garbled.write_bytes(b"\xff\xfe")
    for path in (tmp_path / "absent.toml", tmp_path, garbled):
        with pytest.raises(UsageFault, match="TOML file"):
            RunManifest.load_toml(path)


OWNER = Identity.generate()


def record_of(manifest: bytes) -> RunRecord:
    return sign_run_record(make_run_id("demo", OWNER.public_key), manifest, OWNER)


def test_joining_a_run_with_an_unknown_codec_is_refused_with_the_field() -> None:
    with pytest.raises(Incompatible) as caught:
        manifest_of(record_of(changed("averaging.codec", "int3")))
    assert "averaging.codec is 'int3'; expected one of int4, fp32." in str(caught.value)
    assert "install the version that the run's owner uses" in str(caught.value)


def test_joining_members_with_another_codec_is_refused_with_the_field(tmp_path: Path) -> None:
    """Two manifests of one revision, as when an owner starts a run anew in the same folder."""
    section = AveragingSection(codec="fp32")
    theirs = RunManifest(name="demo", averaging=section)
    local, found = record_of(DEFAULT.to_bytes()), record_of(theirs.to_bytes())
    with pytest.raises(Incompatible) as caught:
        refuse_two_manifests(local, found, theirs, tmp_path / "run.record")
    assert "averaging.codec is 'fp32', not 'int4'." in str(caught.value)
    assert str(tmp_path / "run.record") in str(caught.value)
    refuse_two_manifests(local, local, DEFAULT, tmp_path)
    newer = theirs.model_copy(update={"revision": 2})
    refuse_two_manifests(local, record_of(newer.to_bytes()), newer, tmp_path)
