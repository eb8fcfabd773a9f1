"""The model as a folder: what transformers makes of it, and what may lie in its place."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from dht.ground.errors import Incompatible, LocalFault, UsageFault
from peer.config.manifest import RunManifest
from peer.export.formats.anchors import Anchors, facts_of, named_tensors
from peer.export.formats.llama import llama_tensors
from peer.export.formats.model_card import model_card
from peer.export.formats.model_folder import write_folder
from peer.export.formats.model_reading import read_model
from peer.export.formats.tokenizer_files import byte_tokenizer_files
from peer.trainer.model.gpt import parameters_digest
from tests.kit.tiers import examples
from tests.kit.trainer.exported_models import MANIFEST, MODEL, NOW, RUN_ID, anchors_of, trained_model

NAMES = {
    *("README.md", "config.json", "generation_config.json", "model.safetensors", "run.json"),
    *("tokenizer.json", "tokenizer_config.json"),
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def loaded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def test_transformers_computes_what_the_model_computes(tmp_path: Path) -> None:
    fields = {"num_layers": 2, "d_model": 32, "num_heads": 2, "context": 16}
    manifest = RunManifest.model_validate({"name": "tiny", "model": fields})
    model = trained_model(manifest)
    write_folder(anchors_of(model, manifest), tmp_path / "model", NOW, replace=False)
    tokens = torch.arange(2 * 16).view(2, 16) * 7 % 256
    with torch.no_grad():
        expected, found = model(tokens), loaded(tmp_path / "model")(tokens).logits
    assert float(expected.abs().max()) > 1
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)
    assert parameters_digest(read_model(tmp_path / "model").model) == parameters_digest(model)


def test_text_comes_out_of_the_folder_alone(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model, folder = trained_model(), tmp_path / "model"
    write_folder(anchors_of(model), folder, NOW, replace=False)
    assert {entry.name for entry in folder.iterdir()} == NAMES
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer("hé", return_tensors="pt")
    assert inputs["input_ids"].tolist() == [list("hé".encode())]
    said = loaded(folder).generate(**inputs, max_new_tokens=4, do_sample=False)[0].tolist()
    tokens = list("hé".encode())
    for _ in range(4):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    assert said == tokens


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(byte_tokenizer_files(16)["tokenizer.json"].decode())


@given(st.text())
@settings(max_examples=examples(300))
def test_tokens_are_the_bytes_of_any_text(byte_tokenizer: Any, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
    tokens = byte_tokenizer.encode(data.decode()).ids
    assert tokens == list(data)
    assert byte_tokenizer.decode(tokens, skip_special_tokens=False).encode() == data


@pytest.mark.parametrize("text", ["<0xE2>", "\0", "a\0b", "Ā", "<s> </s>", " two  spaces ", "\r\n", "e\u0301", "🐦"])
def test_nothing_that_looks_like_a_token_is_one(byte_tokenizer: Any, text: str) -> None:
    assert byte_tokenizer.encode(text).ids == list(text.encode())


def test_shards_have_an_index_and_are_read_again(tmp_path: Path) -> None:
    model, folder = trained_model(), tmp_path / "model"
    facts = write_folder(anchors_of(model), folder, NOW, replace=False, max_shard_bytes=9000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) > 2
    assert shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    expected = llama_tensors(MANIFEST.model, named_tensors(anchors_of(model)))
    assert index["metadata"]["total_size"] == 4 * sum(tensor.numel() for tensor in expected.values())
    for name, shard in index["weight_map"].items():
        assert torch.equal(load_file(folder / shard)[name], expected[name])
    assert set(facts["files"]) == {entry.name for entry in folder.iterdir()}
    assert parameters_digest(read_model(folder).model) == parameters_digest(model)
    assert {name: value.shape for name, value in loaded(folder).state_dict().items() if name in expected} == {
        name: value.shape for name, value in expected.items()
    }


def test_no_library_of_models_is_needed_to_write_or_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "tokenizers", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    model, folder = trained_model(), tmp_path / "model"
    write_folder(anchors_of(model), folder, NOW, replace=False)
    assert parameters_digest(read_model(folder).model) == parameters_digest(model)


# ------------------------------------------------------------------------------------------------ what lies there now


def test_an_earlier_export_is_replaced_when_forced(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_folder(anchors_of(trained_model()), folder, NOW, replace=False)
    with pytest.raises(UsageFault, match="already exists and contains files"):
        write_folder(anchors_of(trained_model()), folder, NOW, replace=False)
    write_folder(replace(anchors_of(trained_model()), origin="another"), folder, NOW, replace=True)
    assert read_model(folder).header.origin == "another"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["notes.txt", ".git", "model-00001-of-00002.safetensors"])
def test_force_deletes_nothing_that_an_export_did_not_write(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    write_folder(anchors_of(trained_model()), folder, NOW, replace=False)
    (folder / name).write_text("precious")
    with pytest.raises(UsageFault, match=rf"contains '{name}', which is not from an export"):
        write_folder(anchors_of(trained_model()), folder, NOW, replace=True)
    assert (folder / name).read_text() == "precious"


def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "run.json").write_text('{"files": 3}')
    (tmp_path / "file").write_text("")
    for out, sentence in (
        ("home", "'run.json', which is not from an export"),
        ("file", "is not a folder"),
        ("a/b", "is not"),
    ):
        with pytest.raises(UsageFault, match=sentence):
            write_folder(anchors_of(trained_model()), tmp_path / out, NOW, replace=True)
    (tmp_path / "empty").mkdir()
    write_folder(anchors_of(trained_model()), tmp_path / "empty", NOW, replace=False)
    assert {entry.name for entry in (tmp_path / "empty").iterdir()} == NAMES


@pytest.mark.parametrize("fails_at", ["fsync", "replace"])
def test_a_full_disk_leaves_the_earlier_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str) -> None:
    folder = tmp_path / "model"
    write_folder(anchors_of(trained_model()), folder, NOW, replace=False)
    original = os.replace

    def fail(*arguments: Any) -> None:
        if fails_at == "replace" and Path(arguments[0]) == folder:
            original(*arguments)
            return
        if fails_at == "replace" and str(arguments[0]).endswith(".earlier"):
            original(*arguments)
            return
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, fails_at, fail)
        with pytest.raises(LocalFault, match="No space left on device; expected a writable folder"):
            write_folder(replace(anchors_of(trained_model()), origin="another"), folder, NOW, replace=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert read_model(folder).header.origin == "a test"


# ----------------------------------------------------------------------------------------------------- reading it again


def test_a_damaged_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_folder(anchors_of(trained_model()), folder, NOW, replace=False)
    weights, said = folder / "model.safetensors", folder / "run.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(LocalFault, match="do not match the digest"):
        read_model(folder)
    weights.write_bytes(whole[:-9])
    with pytest.raises(UsageFault, match="is not a complete safetensors file"):
        read_model(folder)
    weights.unlink()
    with pytest.raises(UsageFault, match="has 0 weights files"):
        read_model(folder)
    said.write_text(said.read_text().replace("a test", "A test"))
    with pytest.raises((LocalFault, UsageFault), match=r"weights files|do not match their digest"):
        read_model(folder)
    said.unlink()
    with pytest.raises(UsageFault, match=r"has no run\.json"):
        read_model(folder)


# ------------------------------------------------------------------------------------------------------------ the card


def test_the_card_says_what_is_known_and_shows_markup_as_text() -> None:
    fields = {"name": "tiny", "model": MODEL, "description": "# big <script>x</script> [a](javascript:b) `c`"}
    manifest = RunManifest.model_validate(fields)
    anchors = replace(anchors_of(trained_model(manifest), manifest), contributors=("12D3Koo", "12D3Kop"))
    card = model_card(anchors, "LlamaForCausalLM", has_tokenizer=True)
    assert card.startswith("---\ntags:\n- murmuration\n")
    assert "\npipeline_tag: text-generation\n" in card
    assert r"\# big \<script\>x\</script\> \[a\](javascript:b) \`c\`" in card
    for known in (RUN_ID, manifest.hash.hex(), "4321 committed", "1.250 nats per byte", "- `12D3Koo`", "`stdlib:`"):
        assert known in card
    assert all(facts.digest in card for facts in anchors.facts)


def test_of_a_custom_run_nothing_is_said_that_its_manifest_only_has_by_default(tmp_path: Path) -> None:
    custom = {"num_parameters": 10, "layout_digest": "0" * 64}
    manifest = RunManifest.model_validate({"name": "own", "model": custom})
    values = {0: np.arange(6, dtype=np.float32), 1: np.ones(4, dtype=np.float32)}
    facts = tuple(facts_of(index, 1, 5, value, value, 1) for index, value in values.items())
    folder = tmp_path / "own"
    write_folder(Anchors(RUN_ID, manifest, facts, values, "a test"), folder, NOW, replace=False)
    assert {entry.name for entry in folder.iterdir()} == {"README.md", "model.safetensors", "run.json"}
    card = (folder / "README.md").read_text()
    assert "stdlib" not in card
    assert "a module from its owner's own code" in card
    with pytest.raises(Incompatible, match="expected the built-in GPT"):
        read_model(folder)
