"""Rows with labels: texts and pictures, on the fly and prepared, for models of transformers that classify."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dht.ground.errors import Incompatible, UsageFault
from peer.config.manifest import RunManifest
from peer.owner.new_run import create_run
from peer.trainer.data.corpus import Corpus, open_run_corpus
from peer.trainer.data.document_packing import ORDERS, TokenizeOrder
from peer.trainer.data.shards import read_meta
from peer.trainer.examples.label_rules import ExampleRules, labels_from, rules_of
from peer.trainer.examples.pictures import content_of, pixels_of
from peer.trainer.hf.manifest_from_config import describe_model
from peer.trainer.hf.run_model import build_run_model
from peer.trainer.order.block_order import PermutedOrder
from peer.trainer.prepare import prepare_data
from peer.trainer.text.documents import FileRange, TextPart
from peer.trainer.text.held_out import HeldOutRule
from tests.kit.trainer.prepared_data import small_tokenizer

BERT = {
    "model_type": "bert",
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
    "id2label": {"0": "calm", "1": "stormy"},
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
NAMES = ("calm", "stormy")


def rows(path: Path, number: int = 300) -> Path:
    """Texts of different lengths; a word says the class, half of them by number."""
    lines = []
    for index in range(number):
        kind = index % 2
        text = f"{index}: " + " ".join([("the marsh at dusk", "fly over settle")[kind]] * (1 + index % 9))
        lines.append(json.dumps({"text": text, "label": kind if index % 3 else NAMES[kind]}))
    path.write_text("\n".join(lines) + "\n")
    return path


def run_of(folder: Path, config: dict[str, Any] = BERT, task: str = "sequence-classification") -> RunManifest:
    small_tokenizer(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps(config))
    run_file = folder / "run.toml"
    run_file.write_text("[data]\nevaluation_batches = 2\nheld_out_fraction = 0.2\n")
    made = create_run("tiny", run_file, folder / "owner", model=describe_model(folder / "model", task))
    return RunManifest.from_bytes(made.manifest.to_bytes())


def open_here(manifest: RunManifest, source: str, folder: Path) -> Corpus:
    return open_run_corpus(manifest, source, folder, tokenizer_path=folder / "model" / "tokenizer.json")


def brought(corpus: Corpus) -> Corpus:
    """Once all its parts are here."""
    corpus.training.want(range(corpus.training.num_groups))
    while corpus.training.num_tokens == 0:
        pass
    return corpus


def test_a_run_with_labels_says_so(tmp_path: Path) -> None:
    manifest = run_of(tmp_path)
    assert (manifest.data.source, manifest.data.label_field, manifest.data.tokenizer) == (
        *("jsonl:", "label"),
        "tokenizer.json",
    )
    rules = rules_of(manifest)
    assert rules == ExampleRules("text", "label", NAMES, 24)
    rule = HeldOutRule(0.1, 0.1, 0.25, 12)
    part = TextPart("text", (FileRange("a", 0, 5, 5), FileRange("b", 1, 2, 9)))
    for examples in (rules, replace(rules, picture=(3, 8)), None):
        order = TokenizeOrder(part, "text", rule, tmp_path / "part.u16", tmp_path / "held.u16", examples)
        assert ORDERS.validate_json(ORDERS.dump_json(order)) == order
    assert manifest.step_tokens == manifest.training.batch_size * manifest.training.accumulation_steps
    assert rules_of(RunManifest(name="tiny")) is None


@pytest.mark.parametrize("model_type", ["bert", "llama"])
def test_texts_with_labels_are_learned(tmp_path: Path, model_type: str) -> None:
    config = {**BERT, "model_type": model_type}
    manifest = run_of(tmp_path, config)
    with contextlib.closing(open_here(manifest, f"jsonl:{rows(tmp_path / 'rows.jsonl')}", tmp_path)) as corpus:
        training = brought(corpus).training
        assert training.num_tokens + corpus.held_out.num_tokens == 300
        assert corpus.held_out.num_tokens == pytest.approx(60, abs=30)
        order = PermutedOrder(0, "peer", lambda: None)
        positions = order.next(training.num_tokens, 0, training)
        assert positions is not None
        assert len(set(positions.tolist())) == training.num_tokens
        values, labels = training.batch(positions, 0)
        assert set(labels.tolist()) == {0, 1}
        assert values.shape[1] <= 24
        assert int(values.min()) == -1
        held, its_labels = next(corpus.held_out_batches(1, corpus.held_out.num_tokens, 0))
        trained_on = {tuple(row[row >= 0].tolist()) for row in values}
        assert not trained_on & {tuple(row[row >= 0].tolist()) for row in held}
        model: Any = build_run_model(manifest)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(12):
            optimizer.zero_grad()
            loss = model.loss(values, labels)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            assert float((model(held).argmax(-1) == its_labels).float().mean()) > 0.9
            # What stands behind the end of a shorter text changes nothing.
            one = model(held[:1][:, : int((held[0] >= 0).sum())])
            assert torch.allclose(one, model(held[:1]), atol=1e-5)


def test_what_is_held_out_of_several_parts_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is a group: its examples do not follow on those of the one before."""
    monkeypatch.setattr("peer.trainer.data.text_fetching.SMALLEST_PART_BYTES", 1000)
    manifest = run_of(tmp_path)
    with contextlib.closing(open_here(manifest, f"jsonl:{rows(tmp_path / 'rows.jsonl')}", tmp_path)) as corpus:
        places = [corpus.held_out.group_range(group) for group in range(corpus.held_out.num_groups)]
        positions = [first + index for first, length in filter(None, places) for index in range(length)]
        assert len(places) > 2
        assert len(positions) == corpus.held_out.num_tokens
        found = next(corpus.held_out_batches(1, len(positions), 0))
        assert all(map(torch.equal, found, corpus.held_out.batch(np.array(positions), 0)))


def test_prepared_examples_are_those_of_the_text(tmp_path: Path) -> None:
    manifest = run_of(tmp_path)
    path, rules = rows(tmp_path / "rows.jsonl"), rules_of(manifest)
    tokenizer = tmp_path / "model" / "tokenizer.json"
    quiet: dict[str, Any] = {"num_processes": 1, "say": lambda text: None, "held_out_fraction": 0.2}
    meta, _ = prepare_data([str(path)], tokenizer, tmp_path / "shards", examples=rules, **quiet)
    assert meta.rows is not None
    assert read_meta(tmp_path / "shards") == meta
    prepared = open_here(manifest, f"tokens:{tmp_path / 'shards'}", tmp_path)
    with contextlib.closing(open_here(manifest, f"jsonl:{path}", tmp_path)) as corpus:
        brought(corpus)
        assert prepared.training.num_tokens == corpus.training.num_tokens
        for one, other in ((prepared.training, corpus.training), (prepared.held_out, corpus.held_out)):
            at = np.arange(one.num_tokens, dtype=np.int64)
            assert all(map(torch.equal, one.batch(at, 0), other.batch(at, 0)))
    other_rules = ExampleRules("text", "label", ("a", "b", "c"), 24)
    path.write_text(path.read_text().replace('"calm"', '"a"').replace('"stormy"', '"b"'))
    prepare_data([str(path)], tokenizer, tmp_path / "others", examples=other_rules, **quiet)
    with pytest.raises(UsageFault, match=r"3 labels \(a, b, c\); expected examples of up to 24 tokens with 2 labels"):
        open_here(manifest, f"tokens:{tmp_path / 'others'}", tmp_path)
    prepare_data([str(path)], tokenizer, tmp_path / "text", **quiet)
    with pytest.raises(UsageFault, match="text without labels; expected examples"):
        open_here(manifest, f"tokens:{tmp_path / 'text'}", tmp_path)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "a", "label": 2}, "the label 2; expected 'text' and 'label', with a label of 0 to 1 or one of calm"),
        ({"text": "a", "label": "windy"}, "the label 'windy'"),
        ({"text": "a"}, "the fields text and the label None"),
        ({"words": "a", "label": 1}, "the fields words, label"),
        ([1], "the fields lists"),
    ],
)
def test_rows_without_a_label_of_the_run_are_a_sentence(tmp_path: Path, row: object, said: str) -> None:
    manifest = run_of(tmp_path)
    path = tmp_path / "rows.jsonl"
    path.write_text((json.dumps(row) + "\n") * 3)
    with pytest.raises(UsageFault, match=said):
        open_here(manifest, f"jsonl:{path}", tmp_path)


def test_data_without_labels_is_refused(tmp_path: Path) -> None:
    manifest = run_of(tmp_path)
    for source in ("stdlib:", f"text:{tmp_path}"):
        with pytest.raises(UsageFault, match="has no labels, and this run trains a classification"):
            open_here(manifest, source, tmp_path)
    without = manifest.model_copy(update={"data": manifest.data.model_copy(update={"label_field": None})})
    with pytest.raises(Incompatible, match=r"lacks data\.label_field"):
        build_run_model(without)


def test_labels_of_a_flag(tmp_path: Path) -> None:
    assert labels_from("3") == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert labels_from("no, yes") == ("no", "yes")
    for text in ("", "1", "a", "a,a", "0"):
        with pytest.raises(UsageFault, match="expected two classes or more"):
            labels_from(text)


def picture(colour: tuple[int, int, int], size: tuple[int, int] = (20, 12), kind: str = "PNG") -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


def test_pictures_become_pixels_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    found = pixels_of(picture((10, 20, 30)), 3, 8)
    assert found is not None
    assert found.reshape(3, 64).tolist() == [[value] * 64 for value in (10, 20, 30)]
    grey = pixels_of(picture((90, 90, 90), kind="JPEG"), 1, 4)
    assert grey is not None
    assert abs(int(grey[0]) - 90) < 3
    assert content_of({"bytes": b"x", "path": None}) == content_of(b"x") == b"x"
    assert content_of("x") is None
    for broken in (b"", b"no picture", picture((1, 2, 3))[:40]):
        assert pixels_of(broken, 3, 8) is None
    monkeypatch.setattr("peer.trainer.examples.pictures.MAX_PIXELS", 100)
    assert pixels_of(picture((1, 2, 3)), 3, 8) is None


def test_pictures_with_labels_are_learned(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    colours = [((200, index % 50, 0), 0) if index % 2 else ((0, index % 50, 200), 1) for index in range(80)]
    columns = {
        "image": [
            {"bytes": picture(colour, (9 + index, 12)), "path": None} for index, (colour, _) in enumerate(colours)
        ],
        "label": [label for _, label in colours],
    }
    columns["image"][5] = {"bytes": b"broken", "path": None}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "pictures.parquet")
    config = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 2}
    run_file = tmp_path / "run.toml"
    run_file.write_text('[data]\nheld_out_fraction = 0.2\n[model]\nimage_size = 8\nbuffers = "mean"\n')
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = create_run("tiny", run_file, tmp_path / "owner", model=describe_model(tmp_path / "config.json"))
    manifest = RunManifest.from_bytes(made.manifest.to_bytes())
    assert (manifest.data.source, manifest.data.image_field) == ("parquet:", "image")
    with contextlib.closing(open_run_corpus(manifest, f"parquet:{tmp_path}", tmp_path)) as corpus:
        training = brought(corpus).training
        assert training.num_tokens + corpus.held_out.num_tokens == 79
        order = PermutedOrder(0, "peer", lambda: None)
        positions = order.next(training.num_tokens, 0, training)
        assert positions is not None
        values, labels = training.batch(positions, 0)
        assert values.shape == (training.num_tokens, 3 * 8 * 8)
        model: Any = build_run_model(manifest)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(12):
            optimizer.zero_grad()
            loss = model.loss(values, labels)
            loss.backward()
            optimizer.step()
        assert float(loss.detach()) < 0.2
