"""Exported folders of strangers: run.json is checked before anything is built from it."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import DeviceFault, LocalFault, UsageFault
from peer.config.manifest import RunManifest
from peer.export.formats import model_reading
from peer.export.formats.anchors import run_facts
from peer.export.formats.llama import llama_shapes
from peer.export.formats.model_folder import write_folder
from peer.export.formats.model_header import config_digest
from peer.export.formats.model_reading import read_model
from peer.export.opened_model import open_model
from tests.kit.trainer.initial_anchors import initial_anchors

MODEL = {"num_layers": 1, "d_model": 16, "num_heads": 2, "context": 16}
MANIFEST = RunManifest.from_fields({"name": "tiny", "model": MODEL})
Change = Callable[[dict[str, Any]], object]


def write(folder: Path, change: Change = lambda facts: None, *, signs: bool) -> Path:
    """Write an exported folder whose run.json was changed; `signs`: with a fitting digest."""
    shutil.rmtree(folder, ignore_errors=True)
    write_folder(initial_anchors(MANIFEST), folder, 0.0, replace=False)
    facts = json.loads((folder / "run.json").read_text())
    change(facts)
    if signs:
        facts["config_sha256"] = config_digest(facts)
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def setting(*names: str, to: Any) -> Change:
    def change(config: dict[str, Any]) -> None:
        place = config
        for name in names[:-1]:
            place = place[name]
        place[names[-1]] = to

    return change


CHANGES = {
    "num_heads": setting("manifest", "model", "num_heads", to=1),
    "context": setting("manifest", "model", "context", to=32),
    "tokens": setting("tokens", to=10**15),
    "validation_loss": setting("validation_loss", to=0.1),
    "versions": setting("versions", to=[9] * 4),
    "origin": setting("origin", to="another run"),
    "fragment": setting("fragments", 0, "num_confirmed", to=99),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_field_is_noticed(tmp_path: Path, name: str) -> None:
    with pytest.raises(LocalFault, match="do not match their digest; export the model again"):
        read_model(write(tmp_path / "m", CHANGES[name], signs=False))


WRONG: list[Any] = [None, "seven", -1, 1.5, [], {}, True, [None], ["x"], [[1]], 10**30, "\x1b[2J", float("inf")]


@pytest.mark.parametrize(
    "name", ["run_id", "software", "exported_at", "manifest_hash", "manifest", "versions", "tokens", "fragments"]
)
def test_a_field_of_another_type_is_a_sentence(tmp_path: Path, name: str) -> None:
    for value in WRONG:
        path = write(tmp_path / "m", setting(name, to=value), signs=True)
        try:
            open_model(path)
        except LocalFault as fault:
            shown = str(fault)
        else:
            shown = ""
            fits = {"versions": value == [], "fragments": value == [], "exported_at": type(value) in (int, float)}
            assert fits.get(name, name in ("run_id", "software") and value == "seven"), value
        assert "\x1b" not in shown


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_schema_and_any_field_is_a_sentence(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    for name in ("schema", "manifest", "validation_version", "parameters_sha256"):
        try:
            open_model(write(path, setting(name, to=value), signs=True))
        except LocalFault:
            pass
        else:
            assert name in ("schema", "validation_version")


def test_a_small_file_builds_no_large_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(config: dict[str, Any]) -> None:
        config["manifest"]["model"].update(d_model=65_536, num_layers=512)
        config["manifest_hash"] = RunManifest.from_fields(config["manifest"]).hash.hex()

    monkeypatch.setattr(model_reading, "build_model", lambda *_: pytest.fail("a model of 100 TB is built"))
    with pytest.raises(LocalFault, match=r"expected F32|the parameters that its manifest"):
        read_model(write(tmp_path / "m", change, signs=True))


def test_what_the_file_does_not_hold_is_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of rotary positions is made from the context alone."""

    def change(config: dict[str, Any]) -> None:
        config["manifest"]["model"]["context"] = 2**20
        config["manifest_hash"] = RunManifest.from_fields(config["manifest"]).hash.hex()

    monkeypatch.setattr(model_reading, "free_memory_bytes", lambda: 50_000_000)
    monkeypatch.setattr(model_reading, "build_model", lambda *_: pytest.fail("the table is made"))
    with pytest.raises(DeviceFault, match=r"takes at least .* MB of memory here, but 50.0 MB are free"):
        read_model(write(tmp_path / "m", change, signs=True))


@pytest.mark.parametrize(
    ("width", "vocab_size", "sentence"), [(64, 2**16, "1.00 MB are free"), (4096, 2**22, "free|mapped")]
)
def test_a_file_of_holes_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, vocab_size: int, sentence: str
) -> None:
    """A sparse file can be as long as its header says without having anything in it."""
    fields = {"name": "tiny", "model": {**MODEL, "d_model": width, "vocab_size": vocab_size}}
    manifest = RunManifest.from_fields(fields)
    shapes = model_reading.parameter_shapes(manifest.model)
    config = run_facts(initial_anchors(MANIFEST), "0" * 64, 0.0)
    config["manifest"] = json.loads(manifest.to_bytes())
    config["manifest_hash"] = manifest.hash.hex()
    config["config_sha256"] = config_digest(config)
    header: dict[str, Any] = {}
    end = 0
    for name, shape in llama_shapes(manifest.model, dict(shapes)).items():
        begin, end = end, end + 4 * torch.Size(shape).numel()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(folder / "model.safetensors", 8 + len(text) + end)
    monkeypatch.setattr(model_reading, "free_memory_bytes", lambda: 10**6)
    monkeypatch.setattr(model_reading, "build_model", lambda *_: pytest.fail("69 GB are taken"))
    with pytest.raises(DeviceFault, match=sentence):
        read_model(folder)


def test_a_pipe_or_device_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UsageFault, match="is not a folder; expected a folder that `peer export` wrote"):
            read_model(path)
    for name in ("run.json", "model.safetensors"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        os.mkfifo(tmp_path / "folder" / name)
        with pytest.raises(UsageFault, match="is a named pipe"):
            read_model(tmp_path / "folder")
    with pytest.raises(UsageFault, match=r"has no run\.json; expected a folder that `peer export` wrote"):
        read_model(tmp_path)
