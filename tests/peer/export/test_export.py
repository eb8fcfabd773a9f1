"""The exported folder, samples from it, and its validation loss."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from dht.ground.errors import Incompatible, LocalFault, UsageFault
from peer.checkpoint.checkpoint import USED_NAME
from peer.config.manifest import RunManifest
from peer.config.model_shapes import seed_layout
from peer.export.evaluate import evaluate_model
from peer.export.export import export_model
from peer.export.formats import model_folder
from peer.export.formats.model_folder import write_folder
from peer.export.formats.model_reading import read_model
from peer.export.model_source import CheckpointSource
from peer.export.sample import sample_model, sample_tokens, shown_text, write_pieces
from peer.trainer.data.corpus import open_corpus
from peer.trainer.model.evaluation import validation_loss
from peer.trainer.model.gpt import GPT, parameters_digest
from tests.kit.trainer.exported_models import MANIFEST, MODEL, NOW, RUN_ID, anchors_of, data_folder, trained_model


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads only get in each other's way on a model this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "model"
    write_folder(anchors_of(trained_model()), folder, NOW, replace=False)
    return folder


# --------------------------------------------------------------------------------------------------------- the file


def test_every_bit_of_every_parameter_comes_back(tmp_path: Path) -> None:
    manifest = RunManifest.model_validate({"name": "tiny", "model": MODEL})
    model = trained_model(manifest)
    facts = write_folder(anchors_of(model, manifest), tmp_path / "model", NOW, replace=False)
    found = read_model(tmp_path / "model")
    assert parameters_digest(found.model) == parameters_digest(model)
    assert found.manifest == manifest
    assert facts == json.loads((tmp_path / "model" / "run.json").read_text()) == found.config


def test_run_json_has_the_facts_of_the_run(written: Path) -> None:
    config = json.loads((written / "run.json").read_text())
    assert config["run_id"] == RUN_ID
    assert config["versions"] == [7] * len(seed_layout(MANIFEST).sizes)
    assert (config["tokens"], config["validation_loss"], config["validation_version"]) == (4321, 1.25, 28)
    assert RunManifest.model_validate_json(json.dumps(config["manifest"])).hash.hex() == config["manifest_hash"]
    for fragment, size in zip(config["fragments"], seed_layout(MANIFEST).sizes, strict=True):
        assert (fragment["num_values"], fragment["num_confirmed"], len(fragment["digest"])) == (size, 2, 64)


def fail_at_sync(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def fail_at_save(*_: object, **__: object) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("module", "name", "fail"), [(os, "fsync", fail_at_sync), (model_folder, "save_file", fail_at_save)]
)
def test_a_full_disk_costs_a_sentence_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str, fail: Callable[..., None]
) -> None:
    folder = tmp_path / "model"
    write_folder(anchors_of(trained_model()), folder, NOW, replace=False)
    earlier = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    monkeypatch.setattr(module, name, fail)
    with pytest.raises(
        LocalFault, match=r"No space left on device.*expected a writable folder with room for the model"
    ):
        write_folder(anchors_of(trained_model()), folder, NOW + 1, replace=True)
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == earlier
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["model.safetensors", "run.json"])
@given(data=st.data())
def test_a_damaged_file_is_refused_with_a_sentence(written: Path, name: str, data: st.DataObject) -> None:
    whole = (written / name).read_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    if data.draw(st.booleans()):
        del damaged[position:]
    else:
        damaged[position] ^= data.draw(st.integers(1, 255))
    digest = parameters_digest(read_model(written).model)
    (written / name).write_bytes(damaged)
    try:
        found = read_model(written)
    except LocalFault:
        pass
    else:
        # Only the facts about the model may differ, never the model.
        assert parameters_digest(found.model) == digest
    finally:
        (written / name).write_bytes(whole)


def test_a_checkpoint_can_be_taken_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id, folder, model = data_folder(tmp_path)
    out = tmp_path / "model"
    assert export_model(CheckpointSource(run_id, folder), out, False, True) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["versions"] == [3, 4, 5, 6]
    assert [fragment["num_confirmed"] for fragment in facts["fragments"]] == [0] * 4
    assert parameters_digest(read_model(out).model) == parameters_digest(model)
    for path in folder.rglob("checkpoint.json"):
        os.utime(path, (0, time.time() - 420))
        (path.parent / USED_NAME).touch()
    assert export_model(CheckpointSource(run_id, folder), out, True, False) == 0
    said = capsys.readouterr()
    assert "version 6" in said.out
    assert "\nTokens      99 committed" in said.out
    assert f"Model       {out}  (" in said.out
    # What is old is said to be, and where the newest is.
    assert re.search(r"saved 7 min( \d+ s)? ago, with 99 tokens committed; .* RUN instead", said.err)


def test_a_damaged_checkpoint_or_one_of_another_run_is_refused(tmp_path: Path) -> None:
    run_id, folder, _ = data_folder(tmp_path)
    with pytest.raises(UsageFault, match=r"is not of run tiny\.aaaa"):
        export_model(CheckpointSource("tiny.aaaaaaaaaaaaaaaaaaaa", folder), tmp_path / "m", False, False)
    (file,) = folder.rglob("fragment-0002.safetensors")
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(UsageFault, match=r"no usable checkpoint: .*fragment-0002\.safetensors is damaged"):
        export_model(CheckpointSource(run_id, folder), tmp_path / "m", False, False)
    assert not (tmp_path / "m").exists()


def test_a_checkpoint_of_nobody(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="expected the data folder of a peer of this run"):
        export_model(CheckpointSource(RUN_ID, tmp_path), tmp_path / "model", False, False)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------ what it says


def drawn(model: GPT, **options: float) -> list[int]:
    chosen = {"num_tokens": 40, "temperature": 1.0, "seed": 0, "num_choices": 256} | options
    return list(sample_tokens(model, b"seed", **chosen))  # type: ignore[arg-type]


def test_the_same_seed_says_the_same() -> None:
    model = trained_model()
    assert drawn(model, seed=5) == drawn(model, seed=5)
    assert drawn(model, seed=5) != drawn(model, seed=6)
    assert drawn(model, seed=5, num_tokens=10) == drawn(model, seed=5)[:10]


def test_without_temperature_the_likeliest_token_is_taken() -> None:
    model = trained_model()
    tokens = list(b"seed")
    for token in drawn(model, temperature=0):
        assert token == int(model(torch.tensor([tokens[-model.context :]]))[0, -1].argmax())
        tokens.append(token)
    assert drawn(model, temperature=1e-9) == drawn(model, temperature=0)
    assert drawn(model, temperature=0, seed=9) == drawn(model, temperature=0)


def test_only_bytes_are_drawn_and_an_empty_prompt_is_none() -> None:
    model = trained_model()
    assert max(drawn(model, temperature=100.0, num_choices=10, num_tokens=100)) < 10
    with pytest.raises(ValueError, match="the prompt is empty"):
        next(sample_tokens(model, b"", num_tokens=1, temperature=1.0, seed=0, num_choices=256))


def test_likely_tokens_are_drawn_as_often_as_the_model_says() -> None:
    model = trained_model()
    shares = torch.softmax(model(torch.tensor([list(b"x")]))[0, -1].detach() / 0.5, dim=0)
    counts = torch.zeros(256)
    for seed in range(300):
        (token,) = sample_tokens(model, b"x", num_tokens=1, temperature=0.5, seed=seed, num_choices=256)
        counts[token] += 1
    top = int(shares.argmax())
    assert abs(float(counts[top]) / 300 - float(shares[top])) < 0.1


@given(st.binary(max_size=60), st.binary(max_size=10))
def test_any_bytes_become_text_that_moves_no_cursor(said: bytes, prompt: bytes) -> None:
    pieces: list[str] = []
    write_pieces(shown_text(said, prompt), pieces.append)
    text = "".join(pieces)
    assert text.endswith("\n")
    assert all(char.isprintable() or char in "\n\t" for char in text)


@given(st.text(st.characters(exclude_categories=("C", "M"))), st.text(st.characters(exclude_categories=("C", "M"))))
def test_valid_text_is_shown_as_it_is_and_character_by_character(text: str, prompt: str) -> None:
    pieces = list(shown_text(text.encode(), prompt.encode()))
    expected = "".join(char if char.isprintable() or char in "\n\t" else "�" for char in prompt + text)
    assert "".join(pieces) == expected
    assert len(pieces) == 1 + len(text)


def test_sample_from_a_folder(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written
    assert sample_model(source, "hé", 30, 0.8, 1, "cpu") == 0
    first = capsys.readouterr().out
    assert first.startswith("hé")
    assert sample_model(source, "hé", 30, 0.8, 1, "cpu") == 0
    assert capsys.readouterr().out == first
    assert sample_model(source, "", 3, 0.8, 1, "cpu") == 0
    capsys.readouterr()
    with pytest.raises(UsageFault, match="is an exported folder already"):
        export_model(source, written, True, False)


def test_tokens_of_another_tokenizer_cannot_be_shown(tmp_path: Path) -> None:
    fields = {"name": "tiny", "model": MODEL, "data": {"source": "tokens:"}}
    manifest = RunManifest.model_validate(fields)
    path = tmp_path / "model"
    write_folder(anchors_of(trained_model(manifest), manifest), path, NOW, replace=False)
    with pytest.raises(Incompatible, match="expected a run that reads bytes"):
        sample_model(path, "x", 3, 0.8, 1, "cpu")


# -------------------------------------------------------------------------------------------------- how well it does


def test_evaluate_measures_the_held_out_text(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number}\n" for number in range(2000)))
    assert evaluate_model(written, f"text:{text}", "cpu", True) == 0
    facts = json.loads(capsys.readouterr().out)
    corpus = open_corpus(f"text:{text}", vocab_size=256, context=16, held_out_fraction=0.05)
    assert facts["validation_loss"] == pytest.approx(validation_loss(trained_model(), corpus, 16, 3))
    assert facts["bits_per_byte"] == pytest.approx(facts["validation_loss"] / math.log(2))
    assert (facts["versions"], facts["num_held_out_tokens"], facts["tokens"]) == ([7] * 4, 768, 4321)
    assert evaluate_model(written, f"text:{text}", "cpu", False) == 0
    assert f"{facts['bits_per_byte']:.4f} bits per byte" in capsys.readouterr().out


def test_held_out_tokens_are_counted_once(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A short text is measured in blocks that overlap."""
    text = tmp_path / "text.txt"
    text.write_text("ten bytes." * 100)
    assert evaluate_model(written, f"text:{text}", "cpu", True) == 0
    facts = json.loads(capsys.readouterr().out)
    corpus = open_corpus(f"text:{text}", vocab_size=256, context=16, held_out_fraction=0.05)
    # The first token is predicted from nothing, and so by nobody.
    assert facts["num_held_out_tokens"] == corpus.held_out.num_tokens - 1 < 96
    assert evaluate_model(written, f"text:{text}", "cpu", False) == 0
    assert "tokens: all that it has, some of them repeated" in capsys.readouterr().out
