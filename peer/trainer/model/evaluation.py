"""The held-out loss of a whole model, outside of any training loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from averaging.arrays import F32
from averaging.outer.layout import FragmentLayout
from peer.config.layouts import trained_parameters
from peer.trainer.data.corpus import Corpus


@torch.no_grad()
def held_out_loss(model: nn.Module, corpus: Corpus, num_batches: int, batch_size: int) -> float:
    """Mean loss of a `LanguageModel` over the fixed held-out batches, in nats per token."""
    device = next(model.parameters()).device
    language: Any = model
    was_training = model.training
    model.eval()
    try:
        losses = [
            float(language.loss(inputs.to(device), targets.to(device)))
            for inputs, targets in corpus.held_out_batches(num_batches, batch_size, language.context)
        ]
    finally:
        model.train(was_training)
    return sum(losses) / len(losses)


@torch.no_grad()
def held_out_accuracy(model: nn.Module, corpus: Corpus, num_batches: int, batch_size: int) -> float:
    """Share of the fixed held-out examples whose class a classifier finds: 0 to 1."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        found = [
            (model(values.to(device)).argmax(-1).cpu() == labels).float()
            for values, labels in corpus.held_out_batches(num_batches, batch_size, 0)
        ]
    finally:
        model.train(was_training)
    return float(torch.cat(found).mean())


@torch.no_grad()
def load_anchors(model: nn.Module, layout: FragmentLayout, anchors: Mapping[int, F32]) -> None:
    """Write anchors (fragment -> float32 [num_values]) into the model's parameters."""
    parameters = dict(trained_parameters(model))
    for fragment in layout.fragments:
        values = torch.from_numpy(anchors[fragment.index])
        for piece in fragment.pieces:
            target = parameters[piece.name].view(-1)[piece.start : piece.start + piece.length]
            target.copy_(values[piece.offset : piece.offset + piece.length])
