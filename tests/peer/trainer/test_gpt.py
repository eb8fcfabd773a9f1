"""The built-in model: same start everywhere, causal, learns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from peer.config.model_shapes import parameter_shapes
from peer.trainer.model.gpt import GPT, build_model, parameters_digest

TINY = SimpleNamespace(num_layers=2, d_model=32, num_heads=2, vocab_size=256, context=32)
ODD = SimpleNamespace(num_layers=1, d_model=16, num_heads=2, vocab_size=61, context=8)


@pytest.mark.parametrize(
    ("shape", "digest"),
    [
        (TINY, "6eb55474f3be2a04769d0828b423579ad09fb007a92cb6826fef1708d22447ef"),
        (ODD, "5c7b4c35086b2ff07d62f58b668a7fc8c19c13db0ec15fbfb9440524b7f472f4"),
    ],
)
def test_the_same_seed_gives_the_same_bits_everywhere(shape, digest):
    assert parameters_digest(build_model(shape, seed=7)).hex() == digest
    assert parameters_digest(build_model(shape, seed=7)).hex() == digest
    assert parameters_digest(build_model(shape, seed=8)).hex() != digest


@torch.no_grad()
def test_what_is_kept_of_a_text_gives_the_logits_of_the_whole():
    model = build_model(ODD, seed=1)
    tokens = torch.randint(ODD.vocab_size, (2, ODD.context), generator=torch.Generator().manual_seed(0))
    past = None
    for start, end in ((0, 4), *((at, at + 1) for at in range(4, ODD.context))):
        logits, past = model.continued(tokens[:, start:end], past)
        torch.testing.assert_close(logits, model(tokens[:, :end])[:, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [TINY, ODD])
def test_the_future_does_not_change_the_past(shape):
    model = build_model(shape, seed=0)
    tokens = torch.randint(shape.vocab_size, (2, shape.context), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    cut = shape.context // 2
    changed[:, cut:] = (changed[:, cut:] + 1) % shape.vocab_size
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :cut], after[:, :cut])
    assert not torch.allclose(before[:, cut:], after[:, cut:])


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="multiple of 2"):
        GPT(num_layers=1, d_model=30, num_heads=4, vocab_size=256, context=8)


@pytest.mark.parametrize("shape", [TINY, ODD])
def test_shapes_are_known_without_making_the_model(shape):
    made = build_model(shape, seed=0).named_parameters()
    assert parameter_shapes(shape) == [(name, tuple(parameter.shape)) for name, parameter in made]
