"""Folders of weights that are not whole, not numbers or not read: one sentence before there is a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dht.ground.errors import Incompatible, UsageFault
from peer.config.hf_config import canonical_config
from peer.owner.new_run import create_run
from peer.trainer.hf.architecture import build_architecture
from peer.trainer.hf.base_weights import has_weights, read_base
from peer.trainer.hf.manifest_from_config import describe_model, unused_rows
from tests.kit.trainer.prepared_data import small_tokenizer

LLAMA = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder as `save_pretrained` leaves it, in several files."""
    module: Any = build_architecture(canonical_config(LLAMA), "causal-lm")
    module.save_pretrained(tmp_path / "model", max_shard_size="10KB")
    return tmp_path / "model"


def in_one_file(folder: Path, tensors: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """Write all tensors, or these, as one file instead of several; returns them."""
    found = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    for path in (*folder.glob("*.safetensors"), *folder.glob(INDEX)):
        path.unlink()
    save_file(found if tensors is None else tensors, folder / "model.safetensors")
    return found


@pytest.mark.parametrize(
    "name",
    [
        *("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "last.pth", "epoch.ckpt", "tf_model.h5"),
        *("flax_model.msgpack", "model-q4.gguf", "model.safetensors.part"),
    ],
)
def test_weights_in_other_forms_alone_are_refused(model: Path, name: str) -> None:
    for path in model.glob("*.safetensors*"):
        path.unlink()
    assert not has_weights(model)
    (model / name).write_bytes(b"\x80\x04")
    with pytest.raises(
        UsageFault, match=rf"has {name} and no \*\.safetensors.*save_pretrained.*give only its config\.json"
    ):
        describe_model(model)
    with pytest.raises(UsageFault, match=rf"has {name} and no \*\.safetensors") as refused:
        read_base(model)
    assert "--model" not in str(refused.value)
    assert describe_model(model / "config.json").init is None


def test_a_model_of_the_hub_without_safetensors_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for path in model.glob("*.safetensors*"):
        path.unlink()
    # Other forms are not fetched: only what is beside them is here.
    shutil.copytree(model, tmp_path / "models--org--name" / "snapshots" / ("0" * 40))
    with pytest.raises(UsageFault, match=r"org/name@0+ has no \*\.safetensors file on the hub"):
        describe_model(f"org/name@{'0' * 40}")


def test_weights_that_lack_a_layer_are_refused(model: Path) -> None:
    tensors = in_one_file(model)
    in_one_file(model, {name: tensor for name, tensor in tensors.items() if ".layers.1." not in name})
    with pytest.raises(
        Incompatible,
        match=r"lack model\.layers\.1\.input_layernorm\.weight, .* and 6 more, of the 21 .* complete weights",
    ):
        describe_model(model)
    in_one_file(model, {name: tensor for name, tensor in tensors.items() if name != "model.norm.weight"})
    with pytest.raises(Incompatible, match=r"lack model\.norm\.weight, of"):
        describe_model(model, None, (4, ()))


def test_weights_without_the_head_are_refused_with_the_way_to_add_one(model: Path) -> None:
    config = json.loads((model / "config.json").read_text()) | {"tie_word_embeddings": False}
    (model / "config.json").write_text(json.dumps(config))
    tensors = in_one_file(model)
    in_one_file(model, {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"})
    with pytest.raises(Incompatible, match=r"lack lm_head\.weight, .* LlamaForCausalLM\.from_pretrained\(DIR\)"):
        describe_model(model, "causal-lm")


@pytest.mark.parametrize(
    ("value", "said"), [("nan", "are not numbers"), ("inf", "infinite values"), ("-inf", "infinite values")]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_no_numbers_are_refused(model: Path, dtype: torch.dtype, value: str, said: str) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in in_one_file(model).items()}
    tensors["model.norm.weight"][3] = float(value)
    in_one_file(model, tensors)
    with pytest.raises(UsageFault, match=rf"model\.norm\.weight has .*{said}"):
        read_base(model)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_of_8_bits_that_are_no_numbers_are_refused(model: Path, dtype: torch.dtype) -> None:
    in_one_file(model, {"few_bits": torch.tensor([1.0, float("nan")]).to(dtype), **in_one_file(model)})
    with pytest.raises(UsageFault, match="few_bits has values that are not numbers"):
        read_base(model)


def test_a_mask_s_constant_may_be_infinite(model: Path) -> None:
    in_one_file(model, in_one_file(model) | {"masked_bias": torch.tensor(-1e9).half(), "none": torch.zeros(0)})
    read_base(model)
    in_one_file(model, {"few_bits": torch.ones(3).to(torch.float8_e4m3fn), **in_one_file(model)})
    assert describe_model(model).init is not None


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("{", "is not an index of weights"),
        ("[]", "is not an index of weights"),
        ("{}", "is not an index of weights"),
        ('{"weight_map": ["model.safetensors"]}', "is not an index of weights"),
        ('{"weight_map": {"a": 3}}', "is not an index of weights"),
        ('{"weight_map": {"a": ["b"]}}', "is not an index of weights"),
        ('{"weight_map": {"a": "../other.safetensors"}}', "outside the folder"),
        ("[" * 100_000, "is not an index of weights"),
        ("\ud800".encode("utf-8", "surrogatepass"), "is not an index of weights"),
    ],
)
def test_a_broken_index_is_named(model: Path, index: str | bytes, said: str) -> None:
    (model / INDEX).write_bytes(index if isinstance(index, bytes) else index.encode())
    for read in (read_base, describe_model):
        with pytest.raises(UsageFault, match=said) as refused:
            read(model)
        assert INDEX in str(refused.value)
        assert len(str(refused.value)) < 600


def test_a_file_that_is_not_there_is_named(model: Path) -> None:
    names = sorted(set(json.loads((model / INDEX).read_text())["weight_map"].values()))
    (model / names[1]).unlink()
    for read in (read_base, describe_model):
        with pytest.raises(UsageFault, match=rf"has no {names[1]}, one of the {len(names)} files that .* 1 is missing"):
            read(model)
    for path in model.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(UsageFault, match=rf"has no {names[0]}, .* {len(names)} are missing;"):
        describe_model(model)


def test_files_without_their_index_are_named(model: Path) -> None:
    (model / INDEX).unlink()
    first = min(path.name for path in model.glob("*.safetensors"))
    with pytest.raises(UsageFault, match=rf"has {first}, but neither model\.safetensors nor"):
        describe_model(model)


def test_a_file_that_git_lfs_did_not_fetch_is_named(model: Path) -> None:
    path = min(model.glob("*.safetensors"))
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5000\n")
    with pytest.raises(UsageFault, match=rf"{path.name} is not a complete safetensors file"):
        describe_model(model)


def test_hidden_words_need_a_token_that_stands_for_them(tmp_path: Path) -> None:
    small_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 300}))
    with pytest.raises(UsageFault, match=r"has none of \[MASK\], <mask>; .* \(`peer data tokenizer` makes none\)"):
        describe_model(tmp_path, "masked-lm")


@pytest.mark.parametrize(
    "names",
    [
        ("tokenizer.model",),
        ("tokenizer_config.json", "tokenizer.model"),
        ("sentencepiece.bpe.model",),
        ("qwen.tiktoken",),
        ("vocab.json", "merges.txt"),
        ("vocab.txt",),
        ("tokenizer_config.json",),
    ],
)
def test_a_tokenizer_in_another_form_is_refused_with_or_without_weights(model: Path, names: tuple[str, ...]) -> None:
    for path in model.glob("model*") if len(names) > 1 else ():
        path.unlink()
    for name in names:
        (model / name).write_text("{}")
    named = names[-1] if "tokenizer.model" in names else names[0]
    with pytest.raises(UsageFault, match=rf"has {named} but no tokenizer.json.*AutoTokenizer.from_pretrained\('"):
        describe_model(model)
    small_tokenizer(model)
    with pytest.raises(UsageFault, match=r"tokens, and model.vocab_size is 64.*need the tokenizer that was published"):
        create_run("small", None, model / "owner", model=describe_model(model))


def test_a_tokenizer_of_the_hub_in_another_form_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "tokenizer_config.json").write_text("{}")
    monkeypatch.setattr("peer.trainer.hf.manifest_from_config.from_hub", lambda name, **_: model)
    with pytest.raises(
        UsageFault, match=r"org/name@v1 has tokenizer_config.json but no .*`hf download org/name --revision v1 "
    ):
        describe_model("org/name@v1")


@pytest.mark.parametrize("wrapper", ["_orig_mod", "module", "_orig_mod.module"])
def test_weights_of_a_wrapped_model_name_the_wrapper(model: Path, wrapper: str) -> None:
    whole = in_one_file(model)
    in_one_file(model, {f"{wrapper}.{name}": tensor for name, tensor in whole.items()})
    first = wrapper.partition(".")[0]
    with pytest.raises(Incompatible, match=rf"contain {first}\..*save the bare model, .* attribute {first}$"):
        describe_model(model)


@pytest.mark.parametrize(
    ("rows", "tokens", "told"),
    [
        (151_936, 600, "151,936 token rows, but the tokenizer has only 600 tokens"),
        (50_304, 50_257, None),
        (None, 9, None),
        (32_000, None, "32,000 token rows, but no tokenizer.json is beside it, so a run of text reads bytes"),
        (384, None, None),
        (None, None, None),
    ],
)
def test_token_rows_that_no_text_uses_are_told(rows: int | None, tokens: int | None, told: str | None) -> None:
    notes = unused_rows(tokens, rows)
    assert told in notes[0] if told is not None else not notes
