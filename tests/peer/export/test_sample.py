"""What a run with a tokenizer of its own says: whole characters, up to the end of a text, and in a chat."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import Incompatible, LocalFault, UsageFault
from peer.config.manifest import RunManifest
from peer.export import sample
from peer.export.chat import chat_prompt
from peer.export.formats.anchors import Anchors
from peer.export.formats.model_folder import write_folder
from peer.export.model_source import ModelFileSource
from peer.export.sample import sample_model
from peer.files.checked_folder import measure_file
from peer.limited_child.child_limits import ChildLimits
from peer.trainer.data.loaded_tokenizer import TOKENIZER_NAME, loaded
from peer.trainer.data.tokenizing import make_tokenizer
from peer.trainer.model.sampling import spoken_text
from tests.kit.trainer.exported_models import MODEL, NOW, anchors_of, trained_model
from tests.kit.trainer.prepared_data import small_tokenizer

pytest.importorskip("tokenizers")


def run_with_tokenizer(folder: Path, template: str = "") -> Anchors:
    """The anchors of a run whose files are a byte-level BPE, and a chat template where one is given."""
    files = folder / "files"
    size = make_tokenizer(["größer and größer", "a few words"], 300, files).vocab_size
    if template:
        (files / "chat_template.jinja").write_text(template)
    manifest = RunManifest.model_validate(
        {
            "name": "tiny",
            "model": MODEL | {"vocab_size": size},
            "data": {"source": "text:", "tokenizer": "tokenizer.json"},
            "files": [measure_file(path, path.name).file.model_dump() for path in sorted(files.iterdir())],
        }
    )
    return replace(anchors_of(trained_model(manifest), manifest), files=files)


def exported(folder: Path, template: str = "") -> ModelFileSource:
    write_folder(run_with_tokenizer(folder, template), folder / "model", NOW, replace=False)
    return ModelFileSource(folder / "model")


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
    tokenizer = loaded((source.path / TOKENIZER_NAME).read_bytes(), "tokenizer.json", None)
    words, rest = tokenizer.encode([" few words"])[0].tolist(), tokenizer.encode(["never"])[0].tolist()
    monkeypatch.setattr(sample, "sample_tokens", lambda *_, **__: iter([*words, tokenizer.eos, *rest]))
    assert sample_model(source, "a", 99, 0.8, 1, "cpu") == 0
    assert capsys.readouterr().out == "a few words\n"


def test_in_a_chat_the_template_is_seen_by_the_model_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    source = exported(tmp_path, "<{{ messages[0].role }}>{{ messages[0].content }}<{{ add_generation_prompt }}>")
    tokenizer = loaded((source.path / TOKENIZER_NAME).read_bytes(), "tokenizer.json", None)
    prompts: list[str] = []

    def draw(model: object, prompt: list[int], **_: object) -> list[int]:
        prompts.append(tokenizer.decode(prompt))
        return tokenizer.encode(["words"])[0].tolist()

    monkeypatch.setattr(sample, "sample_tokens", draw)
    assert sample_model(source, "a {{ few }}", 9, 0.8, 1, "cpu", True) == 0
    assert (prompts, capsys.readouterr().out) == (["<user>a {{ few }}<True>"], "words\n")


@pytest.mark.parametrize(
    ("template", "fault", "sentence"),
    [
        ("", UsageFault, "brings no chat template"),
        ("{{ raise_exception('two people') }}", Incompatible, "chat template fails .*two people"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", Incompatible, "chat template fails"),
    ],
)
def test_chats_that_cannot_be(tmp_path: Path, template: str, fault: type[LocalFault], sentence: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(fault, match=sentence):
        sample_model(exported(tmp_path, template), "a", 9, 0.8, 1, "cpu", True)


@pytest.mark.parametrize(
    ("template", "seconds", "happened"),
    [
        ("{{ 9 ** (9 ** 9) }}", 1, "took more than 1 s"),
        ("{{ '%0999999999d' % 1 }}", 60, "took more than 315 MB of memory"),
    ],
)
def test_chats_that_take_all_time_or_memory(
    tmp_path: Path, template: str, seconds: float, happened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("peer.export.chat.LIMITS", ChildLimits(300 << 20, seconds))
    (tmp_path / "chat_template.jinja").write_text(template)
    small_tokenizer(tmp_path / "tokenizer")
    shutil.copytree(tmp_path / "tokenizer", tmp_path, dirs_exist_ok=True)
    with pytest.raises(LocalFault, match=rf"the chat template beside .*{happened}.*; leave --chat away"):
        chat_prompt(tmp_path / TOKENIZER_NAME, "Hello")


def test_another_tokenizer_in_the_folder_is_refused(tmp_path: Path) -> None:
    source = exported(tmp_path)
    path = source.path / "tokenizer.json"
    fields = json.loads(path.read_text())
    fields["model"]["vocab"]["a"], fields["model"]["vocab"]["b"] = (
        fields["model"]["vocab"]["b"],
        fields["model"]["vocab"]["a"],
    )
    path.write_text(json.dumps(fields))
    with pytest.raises(LocalFault, match=r"tokenizer\.json .*expected the run's tokenizer"):
        sample_model(source, "a", 9, 0.8, 1, "cpu")
    path.unlink()
    with pytest.raises(Incompatible, match="no tokenizer is beside the model"):
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
