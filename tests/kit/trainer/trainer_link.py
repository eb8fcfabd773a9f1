"""A small module, and its trainer's side of a mailbox."""

from __future__ import annotations

import torch

from averaging.outer.fragment_layout import build_layout
from peer.mailbox.mailbox import Mailbox
from peer.trainer.loop.mailbox_link import TrainerLink
from tests.kit.clock import Clock


def module_of(dtype=torch.float32):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_((parameter * 1024).round() / 1024)  # so that float32 sums are exact
    return module


def link_of(module, num_fragments=3, by="balanced", **options):
    shapes = [(name, tuple(parameter.shape)) for name, parameter in module.named_parameters()]
    layout = build_layout(shapes, num_fragments, by)
    mailbox = Mailbox.in_process(layout.sizes)
    options = {"sync_every": 4, "clock": Clock(1000.0), "pause": None, **options}
    return TrainerLink(module.named_parameters(), layout, mailbox, **options)


def flat(module):
    return torch.cat([parameter.detach().float().flatten() for parameter in module.parameters()]).clone()


def unsent_work(link: TrainerLink, fragment: int) -> torch.Tensor:
    """L of one fragment: float32 [num_values] on the CPU, a copy."""
    values = torch.empty(link.layout.fragments[fragment].num_values)
    link.ranks.gather_work(link.portion, link.layout.fragments[fragment], values)
    return values


def fragments_joined(link, of):
    return torch.cat([of(index) for index in range(len(link.layout.fragments))])


def move(module, seed):
    """A local step whose float32 arithmetic is exact."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randint(-64, 65, parameter.shape, generator=generator) / 1024)
