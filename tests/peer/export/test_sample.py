"""What a run with a tokenizer of its own says: whole characters, up to the end of a text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import Incompatible, LocalFault
from peer.config.allowed_files import TOKENIZER_NAME
from peer.config.manifest import RunManifest
from peer.export import sample
from peer.export.formats.anchors import Anchors
from peer.export.formats.model_folder import write_folder
from peer.export.sample import sample_model, spoken_text
from peer.files.checked_folder import measure_file
from peer.trainer.data.loaded_tokenizer import loaded
from peer.trainer.data.tokenizing import make_tokenizer
from tests.kit.trainer.exported_models import MODEL, NOW, anchors_of, trained_model

pytest.importorskip("tokenizers")


def run_with_tokenizer(folder: Path) -> Anchors:
    """The anchors of a run whose files are a byte-level BPE."""
    files = folder / "files"
    size = make_tokenizer(["größer and größer", "a few words"], 300, files).vocab_size
    manifest = RunManifest.model_validate(
        {
            "name": "tiny",
            "model": MODEL | {"vocab_size": size},
            "data": {"source": "text:"},
            "files": [measure_file(path, path.name).file.model_dump() for path in sorted(files.iterdir())],
        }
    )
    return replace(anchors_of(trained_model(manifest), manifest), files=files)


def exported(folder: Path) -> Path:
    write_folder(run_with_tokenizer(folder), folder / "model", NOW, replace=False)
    return folder / "model"


def test_text_goes_in_and_comes_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = exported(tmp_path)
    assert sample_model(source, "größer", 12, 0.8, 1, "cpu") == 0
    first = capsys.readouterr().out
    assert first.startswith("größer")
    assert len(first) > len("größer\n")
    assert sample_model(source, "größer", 12, 0.8, 1, "cpu") == 0
    assert capsys.readouterr().out == first
    assert sample_model(source, "", 3, 0.8, 1, "cpu") == 0


def test_it_stops_where_a_text_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = exported(tmp_path)
    tokenizer = loaded((source / TOKENIZER_NAME).read_bytes(), "tokenizer.json", None)
    words, rest = tokenizer.encode([" few words"])[0].tolist(), tokenizer.encode(["never"])[0].tolist()
    monkeypatch.setattr(sample, "sample_tokens", lambda *_, **__: iter([*words, tokenizer.eos, *rest]))
    assert sample_model(source, "a", 99, 0.8, 1, "cpu") == 0
    assert capsys.readouterr().out == "a few words\n"


def test_another_tokenizer_in_the_folder_is_refused(tmp_path: Path) -> None:
    source = exported(tmp_path)
    path = source / "tokenizer.json"
    fields = json.loads(path.read_text())
    fields["model"]["vocab"]["a"], fields["model"]["vocab"]["b"] = (
        fields["model"]["vocab"]["b"],
        fields["model"]["vocab"]["a"],
    )
    path.write_text(json.dumps(fields))
    with pytest.raises(LocalFault, match=r"tokenizer\.json .*expected the run's tokenizer"):
        sample_model(source, "a", 9, 0.8, 1, "cpu")
    path.unlink()
    with pytest.raises(Incompatible, match="no tokenizer beside the model"):
        sample_model(source, "a", 9, 0.8, 1, "cpu")


@given(st.text(max_size=60), st.text(max_size=10))
def test_pieces_are_whole_characters(text: str, before: str) -> None:
    """With bytes as tokens, the hardest case: each character is up to four of them."""
    said = text.encode("utf-8", "replace").decode()
    ahead = list(before.encode("utf-8", "replace"))
    pieces = list(spoken_text(said.encode(), ahead, lambda tokens: bytes(tokens).decode("utf-8", "replace")))
    expected = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in said)
    assert "".join(pieces) == expected
    assert all(len(piece) == 1 for piece in pieces if "\ufffd" not in piece)
