"""The built-in language model: a decoder-only transformer, and an initialisation that is the same on every machine.

RMSNorm before each part (arXiv 1910.07467), rotary positions (arXiv 2104.09864), causal attention, SwiGLU
(arXiv 2002.05202), head tied to the embedding or not (arXiv 1608.05859). Parameters are named in order of depth, so
that fragments by layers are contiguous.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from peer.config.model_section import ModelSection
from peer.config.model_shapes import hidden_width
from peer.trainer.model.reproducible_random import draw_uniform

ROTARY_BASE = 10_000.0
NORM_EPSILON = 1e-6


class Attention(nn.Module):
    """Causal multi-head self-attention with rotary positions."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, past: list[Tensor] | None = None) -> Tensor:
        """Map x, [batch, length, d_model], to the same shape; cosine, sine: [length, head width / 2].

        `past`: keys and values of earlier tokens, empty at first; the keys and values of `x` are added to it.
        """
        batch, length, d_model = x.shape
        packed = self.query_key_value(x).view(batch, length, 3, self.num_heads, d_model // self.num_heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4)  # each [batch, heads, length, head width]
        key = _rotated(key, cosine, sine)
        is_first = not past
        if past is not None:
            if past:
                key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
            past[:] = key, value
        mixed = F.scaled_dot_product_attention(_rotated(query, cosine, sine), key, value, is_causal=is_first)
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, d_model))
        return joined


class FeedForward(nn.Module):
    """SwiGLU; its hidden width keeps the parameter count of a plain layer of width 4 * d_model."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        hidden = hidden_width(d_model)
        self.gate_and_value = nn.Linear(d_model, 2 * hidden, bias=False)
        self.out = nn.Linear(hidden, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x, [batch, length, d_model], to the same shape."""
        gate, value = self.gate_and_value(x).chunk(2, dim=-1)
        result: Tensor = self.out(F.silu(gate) * value)
        return result


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(d_model, eps=NORM_EPSILON)
        self.attention = Attention(d_model, num_heads)
        self.feed_forward_norm = nn.RMSNorm(d_model, eps=NORM_EPSILON)
        self.feed_forward = FeedForward(d_model)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, past: list[Tensor] | None = None) -> Tensor:
        """Map x, [batch, length, d_model], to the same shape; `past`: see `Attention`."""
        x = x + self.attention(self.attention_norm(x), cosine, sine, past)
        result: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class GPT(nn.Module):
    """Maps tokens to logits for the next token.

    Raises:
        ValueError: d_model / num_heads is not an even whole number (rotary positions rotate pairs).
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, *, num_layers: int, d_model: int, num_heads: int, vocab_size: int, context: int) -> None:
        super().__init__()
        if d_model % (2 * num_heads):
            raise ValueError(f"d_model={d_model}, num_heads={num_heads}; expected d_model a multiple of 2 * num_heads")
        self.context = context
        self._recomputes = False
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleList(Block(d_model, num_heads) for _ in range(num_layers))
        self.norm = nn.RMSNorm(d_model, eps=NORM_EPSILON)
        width = d_model // num_heads // 2
        angles = np.outer(np.arange(context), ROTARY_BASE ** (-np.arange(width) / width))
        self.register_buffer("cosine", torch.from_numpy(np.cos(angles).astype(np.float32)), persistent=False)
        self.register_buffer("sine", torch.from_numpy(np.sin(angles).astype(np.float32)), persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Map tokens (int64 [batch, length <= context]) to logits [batch, length, vocab_size], or with targets to
        `loss`.
        """
        length = tokens.shape[1]
        x = self.embedding(tokens)
        cosine, sine = self.cosine[:length].to(x.dtype), self.sine[:length].to(x.dtype)
        for block in self.blocks:
            if self._recomputes and self.training:
                x = checkpoint(block, x, cosine, sine, use_reentrant=False)
            else:
                x = block(x, cosine, sine)
        logits = self._logits(x)
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def _logits(self, x: Tensor) -> Tensor:
        # The embedding is also the output head (arXiv 1608.05859).
        return F.linear(self.norm(x), self.embedding.weight)

    def continued(self, tokens: Tensor, past: list[list[Tensor]] | None) -> tuple[Tensor, list[list[Tensor]]]:
        """Return the logits [batch, vocab_size] after `tokens` (int64 [batch, length]), which follow those cached in
        `past`.

        Args:
            past: the cache that the previous call returned, which this call changes; None: the first call, which may
                have several tokens. Later calls have one token each.

        Returns:
            the logits, and keys and values of each block for all tokens so far; at most `context` of them.
        """
        past = past or [[] for _ in self.blocks]
        start = past[0][0].shape[2] if past[0] else 0
        x = self.embedding(tokens)
        cosine, sine = (one[start : start + tokens.shape[1]].to(x.dtype) for one in (self.cosine, self.sine))
        for block, seen in zip(self.blocks, past, strict=True):
            x = block(x, cosine, sine, seen)
        return self._logits(x[:, -1]), past

    def recompute_activations(self) -> None:
        """Keep only the input of each block for the backward pass, and compute the other activations again."""
        self._recomputes = True

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per token, computed in float32; both int64 [batch, length]."""
        loss: Tensor = self(tokens, targets)
        return loss


def build_model(shape: ModelSection, seed: int) -> GPT:
    """Build the run's model with the run's initial parameters, on the CPU in float32.

    Raises:
        ValueError: the dimensions contradict each other.
    """
    model = GPT(
        num_layers=shape.num_layers,
        d_model=shape.d_model,
        num_heads=shape.num_heads,
        vocab_size=shape.vocab_size,
        context=shape.context,
    )
    initialise(model, seed)
    return model


@torch.no_grad()
def initialise(model: GPT, seed: int) -> None:
    """Fill all parameters with numbers that are bit-identical on every machine.

    Matrices get uniform(-a, a) with a = sqrt(3) * std from the raw output of one PCG64 per parameter. It is seeded by
    `seed` and the parameter's index, and numpy guarantees that stream. Vectors (norm gains) get ones. The deviation std
    is `_standard_deviation`; `seed` is at least 0.
    """
    num_layers = len(model.blocks)
    for index, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.dim() < 2:
            parameter.fill_(1.0)
            continue
        generator = np.random.PCG64(np.random.SeedSequence([seed, index]))
        largest = math.sqrt(3) * _standard_deviation(name, parameter.shape, num_layers)
        draw_uniform(parameter.view(-1), generator, 0.0, largest)


def parameters_digest(model: nn.Module) -> bytes:
    """Return the SHA-256 (32 bytes) of the float32 bytes of all parameters in order."""
    return tensors_digest(model.parameters())


def tensors_digest(tensors: Iterable[Tensor]) -> bytes:
    """Return the SHA-256 (32 bytes) of the tensors' float32 bytes."""
    digest = hashlib.sha256()
    for parameter in tensors:
        digest.update(parameter.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4").tobytes())
    return digest.digest()


def _standard_deviation(name: str, shape: torch.Size, num_layers: int) -> float:
    if "embedding" in name or name.startswith("head"):
        return 0.05
    std = 0.5 / math.sqrt(shape[1])
    # Two parts per layer add to the residual stream; the factor keeps its variance from growing with depth (GPT-2).
    return std / math.sqrt(2 * num_layers) if name.endswith("out.weight") else std


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair (first half, second half) by its position's angle; x: [batch, heads, length, head width]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
