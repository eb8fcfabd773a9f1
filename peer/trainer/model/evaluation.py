"""Operations on a complete model outside any training loop: its validation loss, and loading the run's anchors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from averaging.arrays import F32
from averaging.outer.fragment_layout import FragmentLayout
from peer.trainer.data.corpus import Corpus


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put the module into evaluation mode, and afterwards restore its previous mode."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


@torch.no_grad()
def validation_loss(model: nn.Module, corpus: Corpus, num_batches: int, batch_size: int) -> float:
    """Return the mean loss of a `LanguageModel` over the fixed held-out batches, in nats per token."""
    device = next(model.parameters()).device
    language: Any = model
    with evaluating(model):
        losses = [
            float(language.loss(inputs.to(device), targets.to(device)))
            for inputs, targets in corpus.held_out_batches(num_batches, batch_size, language.context)
        ]
    return sum(losses) / len(losses)


@torch.no_grad()
def fill_tensors(tensors: Mapping[str, Tensor], layout: FragmentLayout, values: Mapping[int, F32]) -> None:
    """Write fragments (each float32 [num_values]) into contiguous tensors by name."""
    for fragment in layout.fragments:
        flat = torch.from_numpy(values[fragment.index])
        for piece in fragment.pieces:
            target = tensors[piece.name].view(-1)[piece.start : piece.start + piece.length]
            target.copy_(flat[piece.offset : piece.offset + piece.length])
