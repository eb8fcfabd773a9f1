"""Runs of architectures of transformers: the folder is what the library itself would have written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dht.ground.errors import Incompatible, LocalFault, UsageFault
from peer.config.allowed_files import FileSection
from peer.config.manifest import RunManifest
from peer.export.evaluate import evaluate_model
from peer.export.formats.anchors import Anchors
from peer.export.formats.model_folder import write_folder
from peer.export.formats.model_reading import model_of, read_model
from peer.export.sample import sample_model
from peer.trainer.data.shards import digest_of
from peer.trainer.hf.manifest_from_config import describe_model
from peer.trainer.hf.run_model import build_run_architecture
from tests.kit.late_library import late_library
from tests.kit.trainer.exported_models import NOW, anchors_of_module, changed
from tests.kit.trainer.prepared_data import json_lines, sentences, small_tokenizer

transformers = late_library("transformers")

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "max_position_embeddings": 32}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
LANGUAGE = {"model_type": "qwen3", "vocab_size": 300, **SIZES, **HEADS, "tie_word_embeddings": True}
EXPERTS = {"model_type": "qwen3_moe", "vocab_size": 256, **SIZES, **HEADS, "num_experts": 2, "num_experts_per_tok": 1}
EXPERTS |= {"moe_intermediate_size": 8, "tie_word_embeddings": False, "dtype": "bfloat16"}
ROUTED = {"model_type": "glm4_moe", "vocab_size": 256, **SIZES, **HEADS, "num_hidden_layers": 2}
ROUTED |= {"n_routed_experts": 3, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "first_k_dense_replace": 1}
MASKED = {"model_type": "bert", "vocab_size": 256, **SIZES, "num_attention_heads": 2}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def run_of(folder: Path, config: dict[str, Any], task: str = "causal-lm", **fields: Any) -> tuple[Any, Anchors]:
    """(a module of transformers that was trained, the anchors that are its parameters)."""
    (folder / "asked.json").write_text(json.dumps(config))
    # As where they are many: each peer keeps its own buffers.
    section = replace(describe_model(folder / "asked.json", task), buffer_shapes=()).section(2, {})
    common = {"name": "tiny", "model": section, "averaging": {"num_fragments": 2}}
    manifest = RunManifest.from_fields({**common, **fields})
    module = changed(build_run_architecture(manifest).float()).eval()
    return module, anchors_of_module(module, manifest)


@pytest.mark.parametrize("config", [LANGUAGE, EXPERTS], ids=["tied", "experts"])
def test_a_language_model_comes_home_bit_for_bit(tmp_path: Path, config: dict[str, Any]) -> None:
    module, anchors = run_of(tmp_path, config)
    folder = tmp_path / "model"
    write_folder(anchors, folder, NOW, replace=False)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = torch.arange(20)[None] * 7
    with torch.no_grad():
        expected = module(input_ids=tokens).logits
        assert torch.equal(loaded(input_ids=tokens).logits, expected)
        assert torch.equal(read_model(folder).model(tokens), expected)
        assert torch.equal(model_of(anchors)(tokens), expected)
    assert loaded.config.use_cache
    assert (loaded.generation_config.eos_token_id, loaded.config.eos_token_id) == (0, 0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("hé")["input_ids"] == list("hé".encode())


def test_buffers_of_each_peer_s_own_are_said_to_be_missing(tmp_path: Path) -> None:
    module, anchors = run_of(tmp_path, ROUTED)
    folder = tmp_path / "model"
    write_folder(anchors, folder, NOW, replace=False)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = torch.arange(20)[None] * 7
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=tokens).logits, module(input_ids=tokens).logits)
    assert "buffers, such as `model.layers.1.mlp.gate" in (folder / "README.md").read_text()


def test_averaged_buffers_come_home(tmp_path: Path) -> None:
    (tmp_path / "asked.json").write_text(json.dumps(ROUTED))
    section = describe_model(tmp_path / "asked.json", "causal-lm").section(2, {})
    averaging = {"num_fragments": 2}
    manifest = RunManifest.from_fields({"name": "tiny", "model": section, "averaging": averaging})
    module = changed(build_run_architecture(manifest).float())
    name = next(name for name, _ in module.named_buffers() if name.endswith("e_score_correction_bias"))
    module.get_buffer(name).copy_(torch.tensor([0.5, -0.25, 0.125]))
    folder = tmp_path / "model"
    write_folder(anchors_of_module(module.eval(), manifest), folder, NOW, replace=False)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = torch.arange(20)[None] * 7
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=tokens).logits, module(input_ids=tokens).logits)
    assert torch.equal(loaded.get_buffer(name), module.get_buffer(name))
    assert "buffers, such as" not in (folder / "README.md").read_text()
    read_model(folder)
    stored = load_file(folder / "model.safetensors")
    save_file(stored | {name: stored[name] + 1}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LocalFault, match="do not match the digest"):
        read_model(folder)


def test_a_model_that_does_not_write_on_is_refused_where_text_is_asked_for(tmp_path: Path) -> None:
    _, anchors = run_of(tmp_path, MASKED, "masked-lm")
    folder = tmp_path / "model"
    write_folder(anchors, folder, NOW, replace=False)
    assert "pipeline_tag: fill-mask" in (folder / "README.md").read_text()
    with pytest.raises(Incompatible, match="trains a model for masked-lm; expected a model that continues"):
        sample_model(folder, "a", 3, 1.0, 0, "cpu")


def test_the_tokenizer_is_the_runs_own_file(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    files = tmp_path / "files"
    files.mkdir()
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(files / "tokenizer.json"))
    (files / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"})
    )
    (files / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    (files / "config.json").write_text("of somebody else")
    (files / "base.safetensors").write_text("weights of where it began")
    listed = [FileSection(name=path.name, bytes=9, digest="0" * 64).model_dump() for path in sorted(files.iterdir())]
    _, anchors = run_of(tmp_path, LANGUAGE, files=listed, data={"source": "tokens:"})
    folder = tmp_path / "model"
    write_folder(replace(anchors, files=files), folder, NOW, replace=False)
    assert (folder / "tokenizer.json").read_bytes() == (files / "tokenizer.json").read_bytes()
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    assert (loaded("b")["input_ids"], loaded.eos_token_id) == ([1], 2)
    assert loaded.apply_chat_template([{"role": "user", "content": "b"}], tokenize=False) == "b"
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id == 2
    assert not (folder / "base.safetensors").exists()
    assert "The tokenizer is the run's own" in (folder / "README.md").read_text()


def test_evaluate_reads_text_through_the_tokenizer_beside_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small_tokenizer(tmp_path / "files").path
    listed = FileSection(name=path.name, bytes=path.stat().st_size, digest=digest_of(path.read_bytes()))
    _, anchors = run_of(tmp_path, LANGUAGE, files=[listed.model_dump()], data={"source": "text:"})
    write_folder(replace(anchors, files=path.parent), tmp_path / "model", NOW, replace=False)
    rows = json_lines(tmp_path / "rows.jsonl", sentences(400))
    assert evaluate_model(tmp_path / "model", f"jsonl:{rows}", "cpu", True) == 0
    assert 0 < json.loads(capsys.readouterr().out)["bits_per_byte"] < 20


def test_a_changed_folder_is_refused(tmp_path: Path) -> None:
    _, anchors = run_of(tmp_path, LANGUAGE)
    folder = tmp_path / "model"
    write_folder(anchors, folder, NOW, replace=False)
    # What it is said to be is the manifest's word, not that of its own config.
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gpt2", "auto_map": {"AutoModel": "x.Y"}}))
    read_model(folder)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(LocalFault, match="do not match the digest"):
        read_model(folder)
    (folder / "model.safetensors").write_bytes(whole[:-9])
    with pytest.raises(UsageFault, match="is not a complete safetensors file"):
        read_model(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(UsageFault, match="is not a complete safetensors file"):
        read_model(folder)
