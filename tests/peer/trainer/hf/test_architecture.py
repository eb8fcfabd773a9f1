"""Architectures of transformers as the model of a run: same initial bits everywhere, their own losses, sentences."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dht.ground.errors import Incompatible, UsageFault
from peer.cli import app
from peer.config.hf_config import canonical_config
from peer.config.hf_model_section import DescribedModel
from peer.config.manifest import RunManifest
from peer.config.model_shapes import trained_parameters
from peer.export.sample import sample_tokens
from peer.owner.custom_module import check_frozen_digest
from peer.owner.new_run import create_run
from peer.trainer.hf.architecture import build_architecture
from peer.trainer.hf.initial_values import built_with_values
from peer.trainer.hf.manifest_from_config import describe_model
from peer.trainer.hf.run_model import build_run_architecture, build_run_model
from peer.trainer.hf.task_losses import ForTask, balance_weight
from peer.trainer.model.gpt import parameters_digest

SMALL = {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {**SMALL, "intermediate_size": 64}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("causal-lm", {**TEXT, "tie_word_embeddings": True}),
    "qwen3": ("causal-lm", {**TEXT, "num_key_value_heads": 1, "head_dim": 16}),
    "gpt2": ("causal-lm", {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}),
    "gpt_neox": ("causal-lm", TEXT),
    "bert": ("masked-lm", TEXT),
}


def build(model_type: str) -> partial[nn.Module]:
    task, fields = ARCHITECTURES[model_type]
    return partial(build_architecture, canonical_config({"model_type": model_type, **fields}), task)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_initial_values_follow_from_the_seed_and_mean_what_the_architecture_means(model_type: str) -> None:
    torch.manual_seed(1)
    one = built_with_values(build(model_type), 7)
    torch.manual_seed(2)
    same, other = built_with_values(build(model_type), 7), built_with_values(build(model_type), 8)
    assert parameters_digest(one) == parameters_digest(same) != parameters_digest(other)
    # The library's own draws: what is constant there is constant here, what varies varies as much.
    theirs = dict(build(model_type)().named_parameters())
    assert theirs.keys() == dict(one.named_parameters()).keys()
    for name, parameter in one.named_parameters():
        mine, its = parameter.detach(), theirs[name].detach()
        if its.unique().numel() == 1:
            assert torch.equal(mine, its), name
        elif its.numel() >= 256:
            assert float(mine.std() / its.std()) == pytest.approx(1, abs=0.15), name


def test_known_bits() -> None:
    """A change of these numbers begins every run anew that nobody has trained yet."""
    module = built_with_values(build("llama"), 0)
    values = dict(module.named_parameters())["model.embed_tokens.weight"].detach().view(-1)[:3].tolist()
    assert values == [-0.025606652721762657, -0.018080830574035645, 0.02045394852757454]


def new_run(folder: Path, model_type: str, task: str | None = None, **fields: Any) -> RunManifest:
    described = {"model_type": model_type, **ARCHITECTURES[model_type][1], **fields}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(described))
    run_file = folder / "run.toml"
    run_file.write_text("[averaging]\nnum_fragments = 2\n[model]\ncontext = 16\n")
    return create_run("tiny", run_file, folder / "owner", model=describe_model(folder, task)).manifest


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_a_run_is_made_from_a_config_and_learns(tmp_path: Path, model_type: str) -> None:
    manifest = new_run(tmp_path, model_type)
    assert (manifest.model.context, manifest.model.vocab_size) == (16, 128)
    model: Any = build_run_model(RunManifest.from_bytes(manifest.to_bytes())).eval()
    assert all(not name.startswith("_") for name, _ in trained_parameters(model))
    tokens = torch.randint(0, 128, (4, 17), generator=torch.Generator().manual_seed(0))
    first = model.loss(tokens[:, :-1], tokens[:, 1:]).detach()
    assert float(first) == pytest.approx(4.85, abs=0.2)  # ln 128
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < float(first) - 0.5


def test_buffers_are_averaged_where_they_are_few(tmp_path: Path) -> None:
    routed = {"model_type": "glm4_moe", **TEXT, "num_key_value_heads": 1, "head_dim": 16, "n_routed_experts": 3}
    routed |= {"num_experts_per_tok": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
    few = described(tmp_path, routed)
    num_values = sum(math.prod(shape) for _, shape in few.buffer_shapes)
    section = few.section(2, {})
    assert section["num_buffer_values"] == num_values
    assert all("e_score_correction_bias" in name for name, _ in few.buffer_shapes)
    assert few.section(2, section) == section
    many = replace(few, buffer_shapes=(("counts", (10**6,)),))
    assert "num_buffer_values" not in many.section(2, {})
    # A rotary table is not part of what is saved.
    assert described(tmp_path, {"model_type": "llama", **TEXT}).buffer_shapes == ()


def test_frozen_parts_are_known_by_their_digest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **TEXT}))
    names = ("model.embed_tokens", "model.layers.0")
    model = describe_model(tmp_path, None, None, names)
    made = create_run("tiny", None, tmp_path / "owner", model=model, built=build_run_architecture)
    manifest = RunManifest.from_bytes(made.manifest.to_bytes())
    assert manifest.model.frozen == names
    built: Any = build_run_model(manifest)
    trained = [name for name, _ in trained_parameters(built)]
    assert trained
    assert not [name for name in trained if name.startswith(names)]
    check_frozen_digest(manifest, built)
    with torch.no_grad():
        next(p for p in built.parameters() if not p.requires_grad).add_(1)
    with pytest.raises(Incompatible, match="different frozen parameters"):
        check_frozen_digest(manifest, built)


@pytest.mark.parametrize(
    ("names", "said"),
    [(("model.layer",), "no part of that name.*model.embed_tokens"), (("model", "lm_head"), "at least one to train")],
)
def test_wrong_frozen_parts_are_a_sentence(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **TEXT}))
    with pytest.raises(Incompatible, match=said):
        describe_model(tmp_path, None, None, names)


def test_the_run_file_to_begin_with_goes_with_a_given_architecture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.trainer.hf.trial.try_model", lambda manifest, _: (manifest.model.context, ()))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **TEXT}))
    assert app.run(["init", "--example"]) == 0
    (tmp_path / "run.toml").write_text(capsys.readouterr().out)
    given = ["--model", str(tmp_path), "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "owner")]
    assert app.run(["init", "tiny", *given]) == 0


def test_masked_tokens_are_learned_and_measured_alike(tmp_path: Path) -> None:
    manifest = new_run(tmp_path, "bert", "masked-lm")
    assert (manifest.model.task, manifest.model.mask_token) == ("masked-lm", 127)
    model: Any = build_run_model(manifest)
    tokens = torch.arange(64).reshape(4, 16) % 5
    model.eval()
    first = [float(model.loss(tokens, tokens).detach()) for _ in range(2)]
    assert first[0] == first[1] == pytest.approx(4.85, abs=0.3)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    for _ in range(8):
        optimizer.zero_grad()
        loss = model.loss(tokens, tokens)
        loss.backward()
        optimizer.step()
    model.eval()
    assert float(model.loss(tokens, tokens).detach()) < first[0] - 1


class SeenTokens(nn.Module):
    """Stands in for an architecture of 1,000 tokens: keeps what it was shown, and knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[torch.Tensor] = []

    def forward(self, input_ids: torch.Tensor) -> Any:
        self.shown.append(input_ids)
        return SimpleNamespace(logits=torch.nn.functional.one_hot(input_ids, 100).float())


@pytest.mark.parametrize("mask_token", [0, 10, 99])
def test_a_hidden_token_becomes_the_mask_or_any_other_token_but_it(mask_token: int) -> None:
    architecture = SeenTokens()
    model = ForTask(architecture, "masked-lm", 512, mask_token, vocab_size=100)
    tokens = torch.full((100, 512), 7)
    model.loss(tokens, tokens)
    (shown,) = architecture.shown
    others = shown[(shown != 7) & (shown != mask_token)]
    assert (shown == mask_token).float().mean() == pytest.approx(0.12, abs=0.005)
    assert len(others) / shown.numel() == pytest.approx(0.015, abs=0.002)
    assert others.unique().numel() == 98
    assert (int(others.min()), int(others.max())) == (0 if mask_token else 1, 99 if mask_token < 99 else 98)


@pytest.mark.parametrize("length", [1, 3, 20])
def test_hidden_tokens_are_measured_alike_however_a_batch_is_cut(length: int) -> None:
    architecture = SeenTokens()
    model = ForTask(architecture, "masked-lm", length, 10, vocab_size=100).eval()
    tokens = torch.randint(0, 100, (8, length), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    whole = float(model.loss(tokens, tokens))
    torch.manual_seed(2)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        parts = [float(model.loss(part, part)) for part in tokens.split(2)]
    finally:
        torch.set_default_dtype(default)
    assert torch.equal(architecture.shown[0], torch.cat(architecture.shown[1:]))
    assert sum(parts) / 4 == pytest.approx(whole, rel=1e-5)
    assert (architecture.shown[0] != tokens).any()


def test_text_is_the_same_with_a_cache_of_keys_and_values(tmp_path: Path) -> None:
    manifest = new_run(tmp_path, "llama")
    model: Any = build_run_model(manifest)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # a model with opinions
        seen = torch.tensor([[3, 5, 7]])
        first, past = model.continued(seen, None)
        assert past is not None
        second, _ = model.continued(torch.tensor([[9]]), past)
        assert torch.allclose(first, model(seen)[:, -1], atol=1e-4)
        assert torch.allclose(second, model(torch.tensor([[3, 5, 7, 9]]))[:, -1], atol=1e-4)
    plain: Any = nn.Module()
    plain.context, plain.inner = model.context, model
    plain.forward = model.forward
    options: dict[str, Any] = {"num_tokens": 40, "temperature": 0.0, "seed": 1, "num_choices": 128}
    # Far beyond the context of 16 too.
    assert list(sample_tokens(model, [3, 5, 7], **options)) == list(sample_tokens(plain, [3, 5, 7], **options))


@pytest.mark.parametrize(("name", "value"), [("vocab_size", 100), ("vocab_size", 200)])
def test_what_the_config_says_is_not_said_otherwise(tmp_path: Path, name: str, value: object) -> None:
    model = described(tmp_path, {"model_type": "llama", **TEXT})
    right = model.section(2, {})
    assert model.section(2, right) == right
    with pytest.raises(ValueError, match=f"model.{name} is {value!r}, but the model has {right[name]!r}"):
        model.section(2, {name: value})


def test_another_library_s_module_is_refused(tmp_path: Path) -> None:
    manifest = new_run(tmp_path, "llama")
    wrong = manifest.model.model_copy(update={"layout_digest": "00" * 32})
    with pytest.raises(Incompatible, match="layout"):
        build_run_model(manifest.model_copy(update={"model": wrong}))


def described(tmp_path: Path, fields: object, task: str | None = None) -> DescribedModel:
    path = tmp_path / "config.json"
    path.write_text(fields if isinstance(fields, str) else json.dumps(fields))
    return describe_model(path, task)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "nonsense"}, "'nonsense'"),
        ({"model_type": "llama", "hidden_size": "wide"}, "hidden_size"),
        ({"model_type": "llama", "hidden_size": 33, "num_attention_heads": 2}, "33"),
        ({"model_type": "llama", "auto_map": {"AutoModel": "x"}}, "auto_map"),
        ({"model_type": "encodec"}, "encodec"),
        ({"hidden_size": 32}, "model_type"),
        ("not json", "not JSON"),
        ("[]", "not a JSON object"),
    ],
)
def test_a_wrong_config_is_a_sentence(tmp_path: Path, fields: object, said: str) -> None:
    with pytest.raises((UsageFault, Incompatible), match=said):
        described(tmp_path, fields)


def test_a_wrong_task_or_place_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="a folder that contains it"):
        describe_model(tmp_path)
    with pytest.raises(UsageFault, match="one of causal-lm"):
        described(tmp_path, {"model_type": "llama", **TEXT}, "poetry")
    with pytest.raises(Incompatible, match="no head for causal-lm"):
        described(tmp_path, {"model_type": "resnet"}, "causal-lm")


def test_without_the_extra_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = new_run(tmp_path, "llama")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageFault, match=r"pip install (-e )?'\.\[hf\]'"):
        build_run_model(manifest)


@pytest.mark.parametrize(
    ("model_type", "fields", "weight"),
    [
        (
            "jetmoe",
            {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 8, "num_key_value_heads": 1},
            "aux_loss_coef",
        ),
        (
            "mixtral",
            {"num_local_experts": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
            "router_aux_loss_coef",
        ),
    ],
)
def test_experts_are_balanced_by_the_weight_that_the_architecture_has(
    model_type: str, fields: dict[str, Any], weight: str
) -> None:
    fields = {"vocab_size": 128, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, **fields}
    text = canonical_config({"model_type": model_type, "output_router_logits": True, **fields, weight: 0.25})
    model = ForTask(build_architecture(text, "causal-lm"), "causal-lm", 8, vocab_size=128).train()
    tokens = torch.randint(0, 128, (2, 9), generator=torch.Generator().manual_seed(0))
    balance = model.architecture(input_ids=tokens[:, :-1]).aux_loss.detach()
    assert float(balance) > 0
    balanced = float(model.loss(tokens[:, :-1], tokens[:, 1:]).detach())
    plain = float(model.eval().loss(tokens[:, :-1], tokens[:, 1:]).detach())
    assert balanced - plain == pytest.approx(0.25 * float(balance), rel=1e-4)


def test_a_balance_weight_of_an_unknown_name_is_a_sentence() -> None:
    architecture: Any = nn.Linear(1, 1)
    architecture.config = SimpleNamespace(model_type="later", get_text_config=SimpleNamespace)
    with pytest.raises(Incompatible, match="'later' balances its experts with a weight of an unknown name"):
        balance_weight(architecture)
