"""Runs that train an adapter: peft loads what comes home, and merging it gives the same model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dht.ground.errors import LocalFault, UsageFault
from peer.config.manifest import RunManifest
from peer.export.formats.anchors import Anchors
from peer.export.formats.model_folder import write_folder
from peer.export.formats.model_reading import model_of, read_model
from peer.trainer.hf.architecture import build_architecture
from peer.trainer.hf.manifest_from_config import describe_model
from peer.trainer.hf.run_model import build_run_architecture
from tests.kit.late_library import late_library
from tests.kit.trainer.exported_models import NOW, anchors_of_module, changed

transformers = late_library("transformers")
peft = late_library("peft")

CONFIG = (
    '{"head_dim":8,"hidden_size":16,"intermediate_size":24,"max_position_embeddings":32,"model_type":"llama",'
    '"num_attention_heads":2,"num_hidden_layers":1,"num_key_value_heads":1,"tie_word_embeddings":true,"vocab_size":256}'
)
TOKENS = torch.arange(12)[None] * 9


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_base(tmp_path_factory.mktemp("base"))


def saved_base(folder: Path, config: str = CONFIG) -> Path:
    torch.manual_seed(0)
    module: Any = build_architecture(config, "causal-lm")
    module.save_pretrained(folder)
    return folder


def run_of(base: Path, targets: tuple[str, ...] = ("q_proj", "down_proj")) -> tuple[Any, Anchors]:
    """(the base with an adapter that was trained, the anchors that are the adapter)."""
    described = describe_model(base, None, (4, targets))
    averaging = {"num_fragments": 2}
    manifest = RunManifest.from_fields({"name": "tiny", "model": described.section(2, {}), "averaging": averaging})
    module: Any = changed(build_run_architecture(manifest, base)).eval()
    return module, anchors_of_module(module, manifest)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("targets", [("q_proj", "down_proj"), ("lm_head",)])
def test_peft_loads_the_adapter_and_a_merge_is_the_same_model(
    base: Path, tmp_path: Path, targets: tuple[str, ...]
) -> None:
    if targets == ("lm_head",):  # It is tied to the embeddings, and `peer init` refuses to train such ones.
        base = saved_base(
            tmp_path / "untied", CONFIG.replace('"tie_word_embeddings":true', '"tie_word_embeddings":false')
        )
    module, anchors = run_of(base, targets)
    write_folder(anchors, tmp_path / "adapter", NOW, replace=False)
    write_folder(anchors, tmp_path / "whole", NOW, replace=False, merge=True, base=base)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size < 20_000
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    loaded = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole").eval()
    with torch.no_grad():
        expected = module(input_ids=TOKENS).logits
        assert not torch.allclose(expected, transformers.AutoModelForCausalLM.from_pretrained(base)(TOKENS).logits)
        assert torch.equal(loaded(input_ids=TOKENS).logits, expected)
        assert torch.allclose(merged(input_ids=TOKENS).logits, expected, rtol=0, atol=1e-5)
        assert torch.equal(read_model(tmp_path / "whole").model(TOKENS), merged(input_ids=TOKENS).logits)
        assert torch.allclose(read_model(tmp_path / "adapter", base).model(TOKENS), expected, rtol=0, atol=1e-5)


def test_an_adapter_is_read_with_its_base(base: Path, tmp_path: Path) -> None:
    module, anchors = run_of(base)
    write_folder(anchors, tmp_path / "adapter", NOW, replace=False)
    with torch.no_grad():
        expected = module(input_ids=TOKENS).logits
        for model in (read_model(tmp_path / "adapter", base).model, model_of(anchors, base)):
            assert torch.allclose(model(TOKENS), expected, rtol=0, atol=1e-5)
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({"other": torch.zeros(3)}, weights)
    with pytest.raises(LocalFault, match="the parameters that its manifest"):
        read_model(tmp_path / "adapter", base)
    weights.write_bytes(b"x")
    with pytest.raises(UsageFault, match="is not a complete safetensors file"):
        read_model(tmp_path / "adapter", base)


def test_an_adapter_of_a_base_on_the_hub_names_it(base: Path, tmp_path: Path) -> None:
    _, anchors = run_of(base)
    section = anchors.manifest.model
    assert section.init is not None
    init = section.init.model_copy(update={"source": "hub:org/base@v1.0"})
    manifest = anchors.manifest.model_copy(
        update={"model": section.model_copy(update={"init": init}), "licence": "Apache-2.0"}
    )
    write_folder(replace(anchors, manifest=manifest), tmp_path / "adapter", NOW, replace=False)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"], config["r"]) == ("org/base", "v1.0", 4)
    card = (tmp_path / "adapter" / "README.md").read_text()
    for line in (
        "base_model: org/base",
        "license: apache-2.0",
        "library_name: peft",
        'from_pretrained("org/base", rev',
    ):
        assert line in card


def test_what_needs_the_base_says_so(base: Path, tmp_path: Path) -> None:
    _, anchors = run_of(base)
    with pytest.raises(UsageFault, match="--base DIR"):
        write_folder(anchors, tmp_path / "whole", NOW, replace=False, merge=True)
    with pytest.raises(UsageFault, match="--base is given without --merge"):
        write_folder(anchors, tmp_path / "whole", NOW, replace=False, base=base)
    assert list(tmp_path.iterdir()) == []
    write_folder(anchors, tmp_path / "adapter", NOW, replace=False)
    for use in (lambda: model_of(anchors), lambda: read_model(tmp_path / "adapter")):
        with pytest.raises(UsageFault, match="expected --base DIR"):
            use()
    write_folder(anchors, tmp_path / "merged", NOW, replace=False, merge=True, base=base)
    with pytest.raises(UsageFault, match=r"--base is given, but .* needs none"):
        read_model(tmp_path / "merged", base)
