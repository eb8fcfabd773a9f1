"""Given weights and adapters: known by digest, the same bits everywhere, nothing of a base is sent or kept."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from averaging.outer.fragment_layout import build_layout
from dht.ground.errors import Incompatible, LocalFault, UsageFault
from peer.config.hf_config import canonical_config
from peer.config.manifest import RunManifest
from peer.config.model_section import AdapterSection
from peer.config.model_shapes import seed_sizes, trained_parameters
from peer.memory.least_memory import check_memory, least_memory_bytes
from peer.owner.new_run import create_run
from peer.plan.planning import plan_run
from peer.trainer.hf import architecture
from peer.trainer.hf.architecture import Compressed, build_architecture, load_architecture
from peer.trainer.hf.base_weights import checked_hub_name, find_base, from_hub, read_base
from peer.trainer.hf.manifest_from_config import AdapterChoice, describe_model
from peer.trainer.hf.run_model import architecture_parts, build_run_model

LLAMA = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `save_pretrained` leaves it, in two files."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    module: Any = build_architecture(canonical_config(LLAMA), "causal-lm")
    module.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path, num_tokens: int = 4) -> None:
    from tokenizers import Tokenizer, models

    words = {f"word{number}": number for number in range(num_tokens - 1)} | {"<|endoftext|>": num_tokens - 1}
    Tokenizer(models.WordLevel(words, unk_token="word0")).save(str(folder / "tokenizer.json"))


def run_of(saved: Path, tmp_path: Path, adapter: AdapterChoice | None = None) -> RunManifest:
    described = describe_model(saved, None, adapter)
    manifest = create_run("tiny", None, tmp_path / "owner", model=described).manifest
    return RunManifest.from_bytes(manifest.to_bytes())


def test_a_run_begins_with_given_weights(saved: Path, tmp_path: Path) -> None:
    manifest = run_of(saved, tmp_path)
    assert manifest.model.init is not None
    assert [file.name for file in manifest.files if file.name != "generation_config.json"] == ["tokenizer.json"]
    assert manifest.tokenizer is not None
    base = find_base(manifest, saved)
    model: Any = build_run_model(manifest, base)
    tensors = {name: tensor for path in saved.glob("*.safetensors") for name, tensor in load_file(path).items()}
    mine = dict(model.architecture.named_parameters())
    assert mine.keys() == tensors.keys()
    assert all(torch.equal(mine[name].detach(), tensor) for name, tensor in tensors.items())
    assert model.training


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="absent does not exist; expected a folder"):
        read_base(tmp_path / "absent")


def test_the_digest_is_of_the_tensors_that_are_loaded(saved: Path, tmp_path: Path) -> None:
    init = describe_model(saved).init
    tensors = {name: tensor for path in saved.glob("*.safetensors") for name, tensor in load_file(path).items()}
    head = tensors["model.embed_tokens.weight"].clone()
    beside = tmp_path / "beside"
    shutil.copytree(saved, beside)
    save_file(tensors | {"more": torch.ones(9)}, beside / "consolidated.safetensors")
    assert describe_model(beside).init == init
    whole = tmp_path / "whole"
    shutil.copytree(saved, whole)  # The whole file goes before the index and its files.
    more = {"lm_head.weight": head, "model.layers.7.unknown.weight": torch.ones(9)}
    save_file(tensors | more, whole / "model.safetensors")
    assert describe_model(whole).init == init
    del tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": head}, whole / "model.safetensors")
    assert describe_model(whole).init == init
    manifest = run_of(saved, tmp_path)
    assert find_base(manifest, beside) == beside
    assert find_base(manifest, whole) == whole
    save_file(tensors | {"lm_head.weight": head + 1}, whole / "model.safetensors")
    with pytest.raises(Incompatible, match="expected the run's pretrained weights"):
        find_base(manifest, whole)
    both = {"model.embed_tokens.weight": head, "lm_head.weight": head + 1}
    save_file(tensors | both, whole / "model.safetensors")
    with pytest.raises(UsageFault, match=r"lm_head.weight and model.embed_tokens.weight differ.*tie_word_embeddings"):
        find_base(manifest, whole)


def test_other_weights_are_refused(saved: Path, tmp_path: Path) -> None:
    manifest = run_of(saved, tmp_path)
    other = tmp_path / "other"
    shutil.copytree(saved, other)
    first = sorted(other.glob("*.safetensors"))[0]
    save_file({name: tensor + 1 for name, tensor in load_file(first).items()}, first)
    with pytest.raises(Incompatible, match="expected the run's pretrained weights"):
        find_base(manifest, other)
    with pytest.raises(UsageFault, match="--base DIR"):
        find_base(manifest, None)
    with pytest.raises(UsageFault, match=r"no \*\.safetensors"):
        find_base(manifest, tmp_path)
    first.write_bytes(b"\xff" * 100)
    with pytest.raises(UsageFault, match="not a complete safetensors file"):
        find_base(manifest, other)
    with pytest.raises(UsageFault, match="begins from its seed"):
        find_base(RunManifest(name="tiny"), saved)


def test_weights_of_another_architecture_or_size_are_refused_before_there_is_a_run(saved: Path, tmp_path: Path) -> None:
    fields = json.loads((saved / "config.json").read_text())
    others = {
        "hidden_size": r"as shape of \S+, but the config specifies \[(128, )?64",
        "model_type": "have 0 of the .* tensors of OPTForCausalLM, and others such as",
    }
    for name, said in others.items():
        changed = fields | {name: 64 if name == "hidden_size" else "opt"}
        folder = tmp_path / name
        shutil.copytree(saved, folder)
        (folder / "config.json").write_text(json.dumps({k: v for k, v in changed.items() if k != "architectures"}))
        with pytest.raises(Incompatible, match=said):
            describe_model(folder, "causal-lm")


def test_a_folder_that_leads_to_other_weights_is_refused(saved: Path, tmp_path: Path) -> None:
    manifest = run_of(saved, tmp_path)
    other = tmp_path / "other"
    shutil.copytree(saved, other)
    (other / "adapter_config.json").write_text('{"base_model_name_or_path": "evil/base"}')
    with pytest.raises(Incompatible, match=r"adapter_config\.json"):
        build_run_model(manifest, find_base(manifest, other))


def test_an_adapter_alone_is_trained_and_begins_alike(saved: Path, tmp_path: Path) -> None:
    manifest = run_of(saved, tmp_path, (4, ("q_proj", "v_proj")))
    adapter = manifest.model.adapter
    assert adapter is not None
    assert adapter.rank == 4
    base = find_base(manifest, saved)
    torch.manual_seed(1)
    one: Any = build_run_model(manifest, base)
    torch.manual_seed(2)
    two: Any = build_run_model(manifest, base)
    mine = trained_parameters(one)
    assert sum(tensor.numel() for _, tensor in mine) == manifest.model.num_parameters
    assert all("lora_" in name for name, _ in mine)
    assert all(
        torch.equal(tensor, other) for (_, tensor), (_, other) in zip(mine, trained_parameters(two), strict=True)
    )
    # It begins as the base, and nothing but the adapter moves.
    whole: Any = build_run_model(run_of(saved, tmp_path / "whole"), base)
    tokens = torch.randint(0, 128, (2, 17), generator=torch.Generator().manual_seed(0))
    one.train()
    first = one.loss(tokens[:, :-1], tokens[:, 1:])
    assert float(first.detach()) == pytest.approx(float(whole.loss(tokens[:, :-1], tokens[:, 1:]).detach()), abs=1e-5)
    frozen = {name: p.detach().clone() for name, p in one.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW([tensor for _, tensor in mine], lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        loss = one.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < float(first.detach())
    now = dict(one.named_parameters())
    assert all(torch.equal(now[name], before) for name, before in frozen.items())


def test_fewer_bits_need_a_library_that_computes_here(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logging.getLogger("bitsandbytes").setLevel(logging.NOTSET)
    lora = run_of(saved, tmp_path / "lora", (4, ()))
    # Where it is installed peft loads it, and it warns of kernels that nobody asked for.
    assert logging.getLogger("bitsandbytes").level == logging.ERROR
    for name in ("bitsandbytes", "bitsandbytes.nn"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageFault, match="--base-bits 4 needs bitsandbytes"):
        build_run_model(lora, find_base(lora, saved), compressed=Compressed(4, torch.device("cpu")))
    broken = types.ModuleType("bitsandbytes.nn")
    broken.Linear4bit = torch.nn.Linear  # type: ignore[attr-defined]
    broken.Linear8bitLt = mock.Mock(side_effect=RuntimeError("compiled for\nother hardware"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bitsandbytes", types.ModuleType("bitsandbytes"))
    monkeypatch.setitem(sys.modules, "bitsandbytes.nn", broken)
    Compressed(4, torch.device("cpu")).check()
    with pytest.raises(UsageFault, match=r"does not compute on cpu here \(compiled for other hardware\); expected a"):
        Compressed(8, torch.device("cpu")).check()


def test_a_base_of_few_bits_stays_differentiable_after_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of bitsandbytes take a form without gradients while they measure, and would keep it."""
    layer = torch.nn.Linear(2, 2)
    layer.support_avx512bf16_for_cpu = True  # type: ignore[assignment]
    loaded = torch.nn.Sequential(layer, torch.nn.ReLU())
    monkeypatch.setattr(architecture, "_loaded", lambda *arguments: loaded)
    assert load_architecture("", "causal-lm", Path()) is loaded
    assert layer.support_avx512bf16_for_cpu is False


def test_targets_that_match_nothing_name_candidates(saved: Path) -> None:
    with pytest.raises(UsageFault, match=r"'c_attn'.*q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"):
        describe_model(saved, None, (16, ("c_attn",)))
    with pytest.raises(UsageFault, match="embed_tokens"):
        describe_model(saved, None, (16, ("embed_tokens",)))
    # Its head is tied to the embeddings, which merging would change, too.
    with pytest.raises(UsageFault, match=r"'lm_head', which shares its matrix with model\.embed_tokens.* q_proj"):
        describe_model(saved, None, (16, ("q_proj", "lm_head")))
    with pytest.raises(UsageFault, match="--lora"):
        describe_model(saved, None, (0, ()))
    with pytest.raises(UsageFault, match="no weights"):
        describe_model(saved / "config.json", None, (16, ()))


def test_rank_16_on_eight_billion_asks_little_of_a_home() -> None:
    fields = {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "dtype": "bfloat16",
    }
    text = canonical_config(fields)
    targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    adapter = AdapterSection(rank=16, targets=targets)
    shapes, _ = architecture_parts(text, "causal-lm", adapter)
    layout = build_layout(list(shapes), 4, "balanced")
    assert layout.num_values == 41_943_040
    section = {
        "config": text,
        "num_parameters": layout.num_values,
        "layout_digest": layout.digest.hex(),
        "adapter": adapter.model_dump(mode="json"),
        "init": {"source": "hub:org/llama@v1", "digest": "ab" * 32, "num_bytes": 16_060_522_496},
    }
    manifest = RunManifest.from_fields({"name": "big", "model": section})
    plan = plan_run(manifest, seed_sizes(manifest))
    memory = plan.home.trainer_memory
    assert memory.base_bytes == 16_060_522_496
    # Nothing else is kept of the base: four copies of the adapter and what waits for the disk.
    assert memory.total_bytes - memory.base_bytes - memory.libraries_bytes < 10 * 4 * layout.num_values
    assert plan.join_bytes < 10 * layout.num_values
    # A home that keeps it in 4 bits is not asked for all 16 GB: it takes 6.
    assert least_memory_bytes(manifest, "train on a GPU") > 16e9
    assert least_memory_bytes(manifest, "train on a GPU", "4") < 6e9
    check_memory(manifest, "train on a GPU", 8 * 10**9, "4")


@pytest.mark.parametrize("name", ["org/name", "org/name@main", "org/name@", "org/name@a b", "name@v1", "a/b/c@v1"])
def test_a_hub_name_has_a_revision(name: str) -> None:
    with pytest.raises(UsageFault, match="expected"):
        checked_hub_name(name)


def test_the_hub_s_cache_serves_without_a_network(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    revision = "0" * 40
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.copytree(saved, tmp_path / "models--org--name" / "snapshots" / revision)
    described = describe_model(f"org/name@{revision}")
    assert described.init is not None
    assert described.init["source"] == f"hub:org/name@{revision}"
    with pytest.raises(LocalFault, match=r"org/other@v1 cannot be read \("):
        from_hub("org/other@v1")
