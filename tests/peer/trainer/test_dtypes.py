"""Parameters of every floating type follow the anchor: x = A - O - r - L holds, whatever the live values can show."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from averaging.outer.fragment_layout import build_layout
from dht.ground.errors import LocalFault
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.slots import MergeKind, WorkKind
from peer.trainer.devices.at_once import at_once
from peer.trainer.devices.portion import CARRIED, ROUNDED, Portion
from peer.trainer.loop.mailbox_link import TrainerLink
from tests.kit.clock import Clock
from tests.kit.trainer import checkpoint_peer
from tests.kit.trainer.checkpoint_peer import Net
from tests.kit.trainer.trainer_link import unsent_work

DTYPES = pytest.mark.parametrize("dtype", CARRIED, ids=str)
EPSILON = {dtype: torch.finfo(dtype).eps for dtype in CARRIED}


def portion_of(dtype, num_values=16, value=0.5):
    parameter = torch.nn.Parameter(torch.full((num_values,), value, dtype=dtype))
    layout = build_layout([("weight", (num_values,))], 1, "balanced")
    return parameter, Portion({"weight": parameter}, layout), layout.fragments[0]


def work_of(portion, fragment):
    out = torch.empty(fragment.num_values)
    portion.gather_work(fragment, out)
    return out.double()


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["step", "add", "rebase", "set", "send"]),
        st.floats(-0.25, 0.25).map(lambda value: float(np.float32(value))),
        st.sampled_from([1.0, 1e-2, 1e-4]),
    ),
    min_size=1,
    max_size=60,
)


@DTYPES
@settings(max_examples=60)
@given(actions=ACTIONS)
def test_live_is_what_the_network_shows_minus_local_work(dtype, actions):
    """x = (A - O - r) - L: the live values are that, rounded once; and L is what the optimizer did, no more."""
    parameter, portion, fragment = portion_of(dtype, 8)
    shown = torch.full((8,), 0.5, dtype=torch.float64)  # A - O - r
    local = torch.zeros(8, dtype=torch.float64)  # L, as the optimizer's steps add up
    spread = torch.linspace(0.5, 1.5, 8, dtype=torch.float64)
    for action, value, scale in actions:
        change = (value * scale * spread).float()
        if action == "step":
            before = parameter.detach().double().clone()
            with torch.no_grad():
                parameter.sub_(change.to(dtype))
            local += before - parameter.detach().double()
        elif action == "send":
            shown, local = shown - local, torch.zeros(8, dtype=torch.float64)
            at_once(portion.measuring_anew(fragment))
        elif action == "add":
            portion.merge(fragment, MergeKind.ADD, change)
            shown = shown + change.double()
        elif action == "rebase":
            shown = (shown + change.double()).float().double()
            portion.merge(fragment, MergeKind.REBASE, shown.float())
        else:
            shown, local = change.double(), torch.zeros(8, dtype=torch.float64)
            portion.merge(fragment, MergeKind.SET, change)
    slack = 1e-6 * (1 + len(actions))
    assert torch.allclose(work_of(portion, fragment), local, rtol=0, atol=slack)
    gap = (parameter.detach().double() - (shown - local)).abs()
    # Between two merges only the optimizer moves the live values, which then keep the rounding of the last merge.
    assert bool((gap <= slack + 2 * EPSILON[dtype] * (1 + max(value for value in shown.abs().tolist()))).all())


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_a_whole_link_follows_its_anchor_for_hundreds_of_rounds(dtype):
    """Live minus anchor stays a rounding, while the anchor moves by less than the type shows at once."""
    parameter = torch.nn.Parameter(torch.full((32,), 0.5, dtype=dtype))
    layout = build_layout([("weight", (32,))], 1, "balanced")
    mailbox = Mailbox.in_process(layout.sizes)
    link = TrainerLink([("weight", parameter)], layout, mailbox, sync_every=1, clock=Clock(1000.0), pause=None)
    anchor, sent = np.full(32, 0.5), 0.0
    for version in range(1, 401):
        with torch.no_grad():
            parameter.sub_(0.003)
        link.after_inner_step(1)
        for message in mailbox.outbox.take():
            if message.kind == WorkKind.WORK:
                # The swarm's mean is 0.9 of what this peer sent, and 2e-5 that others did.
                move = np.float32(2e-5) - np.float32(0.9) * message.values
                # Carried: own work was shown already; the commit adds what the others made of it.
                mailbox.inbox.try_post(MergeKind.ADD, 0, move + message.values, version=version)
                anchor, sent = anchor + move, sent + message.values.astype(np.float64)
            mailbox.outbox.release(message.slot)
        link.poll()
    gap = parameter.detach().double().numpy() - anchor + unsent_work(link, 0).double().numpy()
    assert np.abs(gap).max() <= EPSILON[dtype]
    assert np.abs(anchor - 0.5).max() > 0.01


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn], ids=str)
def test_what_cannot_be_averaged_is_refused_at_join(dtype):
    parameter = torch.nn.Parameter(torch.zeros(4).to(dtype), requires_grad=False)
    layout = build_layout([("weight", (4,))], 1, "balanced")
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(LocalFault, match=f"^parameter 'weight' is {name}, which cannot be averaged; expected float32"):
        TrainerLink([("weight", parameter)], layout, Mailbox.in_process(layout.sizes), sync_every=1)


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_a_checkpoint_keeps_what_rounding_left_out(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(checkpoint_peer, "Net", lambda: Net().to(dtype))
    monkeypatch.setattr(checkpoint_peer, "INPUTS", checkpoint_peer.INPUTS.to(dtype))
    monkeypatch.setattr(checkpoint_peer, "TARGETS", checkpoint_peer.TARGETS.to(dtype))

    async def scene():
        peer = checkpoint_peer.Peer(tmp_path, partial(torch.optim.SGD, foreach=False))
        peer.begin()
        await peer.steps(3)
        for fragment in peer.layout.fragments:
            for _ in range(30):
                peer.link.portion.merge(fragment, MergeKind.ADD, torch.full((fragment.num_values,), 1e-5))
        await peer.leave()
        return peer

    peer = asyncio.run(scene())
    monkeypatch.undo()
    monkeypatch.setattr(checkpoint_peer, "Net", lambda: Net().to(dtype))
    again = checkpoint_peer.resumed(tmp_path, make_optimizer=partial(torch.optim.SGD, foreach=False))
    for (x, work), (x_again, work_again) in zip(peer._flat(), again._flat(), strict=True):
        assert (x.tolist(), work.tolist()) == (x_again.tolist(), work_again.tolist())
    assert any(part.local.abs().max() > 0 for part in again.link.portion.errors.values())
