"""How a step is computed: the gradient is that of the whole batch, whatever the machine's owner chose."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dht.ground.errors import DeviceFault, UsageFault
from peer.config.peer_config import PeerConfig
from peer.trainer.computing.backward_passes import CompiledLoss, MicroBatch, MixedPrecision
from peer.trainer.computing.compute_choices import ComputeChoices, Tell
from peer.trainer.computing.memory_exceptions import memory_fault
from peer.trainer.computing.recompute_and_attention import prepare_module
from peer.trainer.data.corpus import Corpus, TokenStream
from peer.trainer.devices.rank_orders import ALONE
from peer.trainer.loop.inner_step import IGNORED, InnerStep
from peer.trainer.model.gpt import GPT, initialise
from peer.trainer.model.inner_optimizer import has_fused, make_optimizer
from tests.kit.trainer.tiny_gpt import CONTEXT, Settings, model_of

CPU = torch.device("cpu")
POSITIONS = np.arange(0, 8 * 31, 31, dtype=np.int64)
SETTINGS = Settings(batch_size=8)


def corpus_of() -> Corpus:
    tokens = np.random.default_rng(5).integers(0, 256, 2000, np.int64).astype(np.uint16)
    return Corpus(TokenStream([("a", tokens[:1500])], 256), TokenStream([("b", tokens[1500:])], 256))


def step_of(
    model: GPT | None = None,
    choices: ComputeChoices | None = None,
    tell: Tell | None = None,
    corpus: Corpus | None = None,
    settings: Settings = SETTINGS,
) -> InnerStep:
    return InnerStep(model or model_of(), corpus or corpus_of(), settings, CPU, ALONE, choices, tell)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def assert_same_gradient(one: nn.Module, other: nn.Module, rtol: float = 1e-4, atol: float = 1e-7) -> None:
    assert len(gradients(one)) == len(gradients(other)) == len(list(one.parameters()))
    for first, second in zip(gradients(one), gradients(other), strict=True):
        torch.testing.assert_close(first, second, rtol=rtol, atol=atol)


# --- micro-batches ---


@pytest.mark.parametrize(
    ("size", "settings"),
    [(1, SETTINGS), (3, SETTINGS), (100, SETTINGS), (0, Settings(batch_size=2, accumulation_steps=4))],
)
def test_the_gradient_is_that_of_the_whole_batch(size: int, settings: Settings) -> None:
    whole, parts = model_of(), model_of()
    expected = step_of(whole).gradient(POSITIONS)
    choices = ComputeChoices(micro_batch=size) if size else None
    found = step_of(parts, choices, settings=settings).gradient(POSITIONS)
    assert found == pytest.approx(expected, rel=1e-5)
    assert_same_gradient(whole, parts)


class Ignoring(TokenStream):
    """Targets that do not count, more of them the further back a block begins."""

    def batch(self, positions: Any, context: int) -> Any:
        inputs, targets = super().batch(positions, context)
        targets = targets.clone()  # of a single block it is a view of what the inputs are one of too
        for row, position in enumerate(positions):
            targets[row, : min(context, int(position) // 13)] = IGNORED
        return inputs, targets


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_pass_weighs_as_many_tokens_as_it_has(size: int) -> None:
    corpus = replace(corpus_of(), training=Ignoring([("a", np.arange(1500, dtype=np.uint16) % 251)], 256))
    whole, parts = model_of(), model_of()
    expected = step_of(whole, corpus=corpus).gradient(POSITIONS)
    # The last block has no target at all: alone in a pass its mean loss would be no number.
    assert int((corpus.training.batch(POSITIONS[-1:], CONTEXT)[1] != IGNORED).sum()) == 0
    found = step_of(parts, ComputeChoices(micro_batch=size), corpus=corpus).gradient(POSITIONS)
    assert found == pytest.approx(expected, rel=1e-5)
    assert_same_gradient(whole, parts)


class Small(GPT):
    """A model on a device without memory for more than `most` sequences at a time."""

    most = 3
    error: BaseException = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = super().loss(tokens, targets)
        if len(tokens) > self.most:
            # Part of the gradient is there already.
            loss.backward()  # type: ignore[no-untyped-call]
            raise self.error
        return loss


def small(most: int = 3, error: BaseException | None = None) -> Small:
    model = Small(num_layers=1, d_model=16, num_heads=2, vocab_size=256, context=CONTEXT)
    initialise(model, 0)
    model.most = most
    model.error = error or model.error
    return model


@pytest.mark.parametrize(
    "error",
    [
        None,
        RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported at some other API call"),
    ],
)
def test_a_step_without_enough_memory_is_repeated_in_smaller_passes_and_told_once(error: BaseException | None) -> None:
    whole, model = model_of(), small(error=error)
    told: list[tuple[int, int]] = []
    inner = step_of(model, tell=Tell(smaller=lambda before, now: told.append((before, now))))
    reads: list[list[int]] = []
    read = inner._corpus.training.batch
    inner._corpus.training.batch = lambda positions, context: reads.append([*positions]) or read(positions, context)  # type: ignore[method-assign,func-returns-value]
    expected = step_of(whole).gradient(POSITIONS)
    assert inner.gradient(POSITIONS) == pytest.approx(expected, rel=1e-5)
    assert_same_gradient(whole, model)
    assert told == [(8, 2)]
    assert [position for part in reads[-4:] for position in part] == [*POSITIONS]
    inner.gradient(POSITIONS)
    assert told == [(8, 2)]


def test_the_validation_loss_is_measured_in_passes_that_fit() -> None:
    told: list[tuple[int, int]] = []
    model = small()
    with torch.no_grad():
        model.error = torch.OutOfMemoryError("no")
        inner = step_of(model, tell=Tell(smaller=lambda before, now: told.append((before, now))))
        model.loss = lambda tokens, targets: fits(model, tokens, targets)  # type: ignore[method-assign]
        assert inner.evaluate(2) == pytest.approx(step_of().evaluate(2), rel=1e-6)
    assert told == [(8, 2)]


def fits(model: Small, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if len(tokens) > model.most:
        raise model.error
    return GPT.loss(model, tokens, targets)


def test_one_sequence_that_does_not_fit_is_a_sentence_about_memory() -> None:
    inner = step_of(small(most=0))
    with pytest.raises(torch.OutOfMemoryError) as raised:
        inner.gradient(POSITIONS)
    fault = memory_fault(raised.value)
    assert isinstance(fault, DeviceFault)
    assert "do not fit into the memory of this device (CUDA out of memory." in str(fault)
    assert "--checkpoint-activations" in str(fault)


def test_with_other_processes_a_step_cannot_be_repeated() -> None:
    micro_batch = MicroBatch(8, may_halve=False, tell=lambda *_: None)

    def compute() -> None:
        raise torch.OutOfMemoryError("no")

    with pytest.raises(torch.OutOfMemoryError):
        micro_batch.fitting(compute, lambda: None)
    assert micro_batch.size == 8


# --- precision ---


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.02), ("fp16", 0.01), ("fp32", 1e-6), ("auto", 1e-6)])
def test_every_precision_has_nearly_the_same_gradient(precision: Any, tolerance: float) -> None:
    whole, model = model_of(), model_of()
    expected = step_of(whole).gradient(POSITIONS)
    inner = step_of(model, ComputeChoices(precision=precision, micro_batch=4))
    found = inner.gradient(POSITIONS)
    assert found == pytest.approx(expected, rel=tolerance)
    assert_same_gradient(whole, model, rtol=0.1, atol=tolerance)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    inner.update(0)
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_a_scale_that_overflows_is_halved_until_steps_are_finite() -> None:
    inner = step_of(choices=ComputeChoices(precision="fp16"))
    inner._precision._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)  # what no gradient in float16 survives
    results = [inner.step(POSITIONS, age) for age in range(14)]
    assert not np.isfinite(results[0][1])
    assert np.isfinite(results[-1][1])
    assert results[-1][0] < results[0][0]


def test_fp16_refuses_parameters_whose_gradients_cannot_be_scaled() -> None:
    model = model_of().to(torch.bfloat16)
    with pytest.raises(UsageFault, match=r"fp16 was given for a model of parameters in bfloat16; expected .* bf16 or"):
        step_of(model, ComputeChoices(precision="fp16"))
    with pytest.raises(UsageFault, match="sharded parameters"):
        MixedPrecision("fp16", CPU, [], is_sharded=True)


# --- torch.compile ---


def test_without_a_compiler_training_goes_on_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nothing(loss: Any) -> Any:
        def compiled(tokens: Any, targets: Any) -> Any:
            raise torch._dynamo.exc.TorchDynamoException("No working C++ compiler found\n\nSet TORCHDYNAMO_VERBOSE=1")

        return compiled

    monkeypatch.setattr(torch, "compile", compile_nothing)
    whole, model, told = model_of(), model_of(), list[object]()
    tell = Tell(note=told.append, compiling=told.append)
    inner = step_of(model, ComputeChoices(compile=True, micro_batch=2), tell)
    assert inner.gradient(POSITIONS) == pytest.approx(step_of(whole).gradient(POSITIONS), rel=1e-5)
    assert_same_gradient(whole, model)
    assert told[:2] == [True, False]
    assert len(told) == 3
    assert "torch.compile failed (No working C++ compiler found); training continues" in str(told[2])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), ValueError("of the model")])
def test_what_is_no_failure_of_the_compiler_is_not_hidden(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(torch, "compile", lambda loss: fails)
    with pytest.raises(type(error)):
        CompiledLoss(model_of().loss, Tell())(torch.zeros(1), torch.zeros(1))


# --- activations and attention ---


def llama() -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(vocab_size=256, **sizes)
    module: nn.Module = transformers.LlamaForCausalLM._from_config(config)
    return module


class Wrapped(nn.Module):
    """An architecture of transformers as the inner loop has it."""

    def __init__(self, architecture: nn.Module) -> None:
        super().__init__()
        self.architecture: Any = architecture
        self.context = CONTEXT

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.architecture(input_ids=tokens).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("make", [model_of, lambda: Wrapped(llama())], ids=["gpt", "llama"])
def test_activations_that_are_computed_again_give_the_same_gradient(make: Any) -> None:
    models, kept = [], []
    for again in (False, True):
        model = make()
        prepare_module(model, ComputeChoices(checkpoint_activations=again))
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(partial(noted, sizes), lambda tensor: tensor):
            step_of(model).gradient(POSITIONS)
        models.append(model)
        kept.append(sum(sizes))
    assert_same_gradient(*models)
    assert kept[1] < 0.7 * kept[0]


def noted(sizes: list[int], tensor: torch.Tensor) -> torch.Tensor:
    sizes.append(tensor.numel())
    return tensor


def test_a_model_that_cannot_compute_activations_again_is_named() -> None:
    with pytest.raises(UsageFault, match="--checkpoint-activations was given, but Linear cannot"):
        prepare_module(nn.Linear(1, 1), ComputeChoices(checkpoint_activations=True))


def test_attention_is_passed_on_to_the_architecture() -> None:
    model = Wrapped(llama())
    prepare_module(model, ComputeChoices(attention="eager"))
    assert model.architecture.config._attn_implementation == "eager"
    eager = step_of(model).gradient(POSITIONS)
    prepare_module(model, ComputeChoices(attention="sdpa"))
    assert model.architecture.config._attn_implementation == "sdpa"
    assert step_of(model).gradient(POSITIONS) == pytest.approx(eager, rel=1e-4)


def test_attention_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(UsageFault, match=r"--attention flash is not available \(.*omit"):
        prepare_module(Wrapped(llama()), ComputeChoices(attention="flash"))
    prepare_module(model_of(), ComputeChoices(attention="sdpa"))
    with pytest.raises(UsageFault, match="--attention eager was given, but GPT has only sdpa"):
        prepare_module(model_of(), ComputeChoices(attention="eager"))


# --- the optimizer ---


def test_adamw_is_fused_where_torch_has_that() -> None:
    assert has_fused(model_of().parameters())
    assert step_of().optimizer.param_groups[0]["fused"]
    assert not has_fused([torch.zeros(1, device="meta")])


def test_eight_bits_take_bitsandbytes_and_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def adamw(groups: Any, **options: Any) -> torch.optim.Optimizer:
        made.append(options)
        return torch.optim.SGD(groups, lr=options["lr"])

    optim = SimpleNamespace(AdamW8bit=adamw)
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace(optim=optim))
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", optim)
    inner = step_of(choices=ComputeChoices(optimizer_bits="8"))
    assert made == [{"lr": SETTINGS.learning_rate, "betas": (0.9, 0.95)}]
    assert [group["weight_decay"] for group in inner.optimizer.param_groups] == [0.1, 0.0]
    with pytest.raises(UsageFault, match="inner optimizer is muon; expected adamw"):
        make_optimizer(model_of().named_parameters(), replace(SETTINGS, optimizer="muon"), bits="8")  # type: ignore[arg-type]


def test_without_bitsandbytes_the_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(UsageFault, match=r"needs bitsandbytes, which cannot be loaded.*run: .pip install bitsandbytes"):
        step_of(choices=ComputeChoices(optimizer_bits="8"))


def test_choices_are_those_of_the_configuration() -> None:
    config = PeerConfig.model_validate({"run_id": "any.aaaaaaaaaaaaaaaaaaaa", "micro_batch": 3, "precision": "fp16"})
    assert ComputeChoices.of(config) == ComputeChoices(micro_batch=3, precision="fp16")
    assert ComputeChoices.of(PeerConfig(run_id=config.run_id)) == ComputeChoices()
