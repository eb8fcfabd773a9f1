"""Simulated swarms for `convergence.py`: M replicas in one process, virtual rounds, the averaging code that ships.

Every replica has its own parameters, AdamW state and data. What crosses between them goes through `FragmentState`,
`reduce_shard` and a codec, exactly as in a peer: work is received, sent, reduced, and the change that a commit makes is
added to the live parameters. Time is counted in inner steps: the round that begins at a send is committed
`delay_rounds * sync_every` steps later. A peer has one contribution of a fragment under way at a time, so with a delay
of more than one round it sends more work less often.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn

from averaging.codec import Codec, make_codec
from averaging.fragment_state import CommittedShard, FragmentState, reduce_shard, shard_rates
from averaging.fragments import FragmentLayout, build_layout
from averaging.outer import Terms, staleness_of, weights_of
from averaging.schedule import fragments_due
from benchmarks.convergence_arms import DATA_PARALLEL, Arm, Outcome, Task
from peer.data import block_positions
from peer.evaluation import held_out_loss
from peer.model import GPT, build_model
from peer.trainer import learning_rate_at


class Replica:
    """Parameters and gradients as flat vectors, AdamW, data, and the start of the local work (`ref`) beside them."""

    def __init__(self, index: int, task: Task, seed: int, num_shares: int = 1) -> None:
        self.index = index
        self._task = task
        self._seed = seed
        self._peer_ids = [f"peer-{index + share}" for share in range(num_shares)]
        self.model: GPT = build_model(task.model, seed)
        parameters = list(self.model.parameters())
        self.live = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self._gradient = torch.zeros_like(self.live)
        start = 0
        for parameter in parameters:
            inside = slice(start, start + parameter.numel())
            parameter.data = self.live[inside].view_as(parameter)
            parameter.grad = self._gradient[inside].view_as(parameter)
            start += parameter.numel()
        self.ref = self.live.clone()
        settings = task.training
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [parameter for parameter in parameters if parameter.dim() >= 2]},
                {"params": [parameter for parameter in parameters if parameter.dim() < 2], "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def step(self, step: int) -> None:
        """Inner step `step`, counted from 0; a gradient that is not finite leaves NaN for the swarm to find."""
        settings, context = self._task.training, self._task.model.context
        stream = self._task.corpus.training
        positions = [
            block_positions(self._seed, peer_id, step, settings.batch_size, stream.num_tokens, context)
            for peer_id in self._peer_ids
        ]
        inputs, targets = stream.batch(np.concatenate(positions), context)
        self._gradient.zero_()
        self.model.loss(inputs, targets).backward()  # type: ignore[no-untyped-call]
        norm = float(self._gradient.norm())
        if norm > settings.grad_clip:
            self._gradient.mul_(settings.grad_clip / norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate_at(step, settings)
        self._optimizer.step()

    def add(self, inside: slice, change: Tensor) -> None:
        """As `TrainerLink` does with ADD: local work stays what it is."""
        self.live[inside].add_(change)
        self.ref[inside].add_(change)


@dataclass
class Lane:
    """One fragment at all replicas.

    Attributes:
        commit_at: inner step at which the round under way is committed; None without one.
        base_versions: per replica, the anchor in the live parameters when the current block of work began.
        gains: per replica, the adaptive overlay gain; none before its first commit.
        hidden: per replica, the part of the error feedback that the live parameters do not show.
        carried_error: what the broadcasts so far lost.
    """

    inside: slice
    states: list[FragmentState]
    commit_at: int | None
    base_versions: list[int]
    gains: dict[int, float] = field(default_factory=dict)
    hidden: dict[int, Tensor] = field(default_factory=dict)
    carried_error: Tensor | None = None
    steps_since_send: int = 0


class Swarm:
    """`arm.num_peers` replicas that train on `task` from the same initial parameters."""

    def __init__(self, arm: Arm, task: Task, seed: int) -> None:
        self.arm = arm
        self.task = task
        self.num_commits = 0
        self.bytes_per_peer = 0
        self.lookahead_rate = arm.outer_lr * arm.outer_momentum**2
        self.projections: list[float] = []
        self._chance = random.Random(f"missing {seed}")
        self._sequence = 0
        self._codec: Codec = make_codec(arm.codec, arm.block_size)
        self.replicas = [Replica(index, task, seed) for index in range(arm.num_peers)]
        shapes = [(name, tuple(tensor.shape)) for name, tensor in self.replicas[0].model.named_parameters()]
        layout = build_layout(shapes, arm.num_fragments)
        self.lanes = [self._make_lane(inside) for inside in _places(layout)]

    def run(self, steps_between_losses: int) -> Outcome:
        """Train to the end, then commit whatever is still under way or waiting."""
        curve = []
        for step in range(1, self.task.num_steps + 1):
            for replica in self.replicas:
                replica.step(step - 1)
            if not all(bool(replica.live.isfinite().all()) for replica in self.replicas):
                return Outcome(tuple(curve), float("nan"), step, self.bytes_per_peer, self.num_commits)
            self.after_inner_step(step)
            if step % steps_between_losses == 0 and step < self.task.num_steps:
                curve.append((step, self.anchor_loss()))
        live_loss = _loss(self.task, self.replicas[0].model)
        self.drain()
        curve.append((self.task.num_steps, self.anchor_loss()))
        projection = fmean(self.projections) if self.projections else float("nan")
        return Outcome(tuple(curve), live_loss, None, self.bytes_per_peer, self.num_commits, projection)

    def after_inner_step(self, step: int) -> None:
        """Commit what is due, then send what is due; a round without delay is committed at once."""
        due = fragments_due(step, self.arm.sync_every, len(self.lanes))
        for index, lane in enumerate(self.lanes):
            lane.steps_since_send += 1
            if lane.commit_at == step:
                self._commit(lane)
            if index in due:
                self._hand_over(lane)
                if lane.commit_at is None:
                    self._send(lane, step)
            if lane.commit_at == step:
                self._commit(lane)

    def drain(self) -> None:
        """Commit the round under way, and what waits behind it."""
        for lane in self.lanes:
            if lane.commit_at is not None:
                self._commit(lane)
            if lane.steps_since_send:
                self._hand_over(lane)
            if any(state.unsent_tokens for state in lane.states):
                self._send(lane, self.task.num_steps)
                self._commit(lane)

    def anchor_loss(self) -> float:
        """Held-out loss of the anchors, which are the same at every replica."""
        replica = self.replicas[0]
        live = replica.live.clone()
        for lane in self.lanes:
            replica.live[lane.inside].copy_(lane.states[0].anchor)
        loss = _loss(self.task, replica.model)
        replica.live.copy_(live)
        return loss

    # ------------------------------------------------------------------------------------------------------ inside

    def _make_lane(self, inside: slice) -> Lane:
        rule = self.arm.rule()
        states = [
            FragmentState(
                rule, self._codec, replica.live[inside].clone(), *torch.zeros(2, inside.stop - inside.start).unbind()
            )
            for replica in self.replicas
        ]
        return Lane(inside, states, None, [0] * len(states))

    def _hand_over(self, lane: Lane) -> None:
        """What `TrainerLink` sends and the network process receives."""
        tokens = lane.steps_since_send * self.task.training.batch_size * self.task.model.context
        for index, (replica, state) in enumerate(zip(self.replicas, lane.states, strict=True)):
            work = replica.ref[lane.inside] - replica.live[lane.inside]
            state.receive_work(work, tokens, lane.steps_since_send, lane.base_versions[index])
            replica.ref[lane.inside].copy_(replica.live[lane.inside])
            lane.base_versions[index] = state.version
        lane.steps_since_send = 0

    def _send(self, lane: Lane, step: int) -> None:
        rule = self.arm.rule(step / self.task.num_steps)
        for index, (replica, state) in enumerate(zip(self.replicas, lane.states, strict=True)):
            # Only between rounds: the overlay of a contribution under way depends on the rule.
            state.rule = replace(rule, overlay_gain=lane.gains.get(index, rule.overlay_gain))
            if not state.unsent_tokens:
                continue
            late = staleness_of(rule.mode, state.version, state.unsent_base_version)
            if late > rule.staleness_limit:
                replica.add(lane.inside, state.drop_waiting())
                continue
            self._sequence += 1
            sent, change = state.send(self._sequence)
            if replica is self.replicas[0]:
                self.bytes_per_peer += sent.encoded.num_bytes
            if change is not None:
                replica.add(lane.inside, change)
            if self.arm.residual_shown != 1.0:
                hidden = state.residual * (1 - self.arm.residual_shown)
                replica.add(lane.inside, hidden - lane.hidden.get(index, torch.zeros(())))
                lane.hidden[index] = hidden
        lane.commit_at = step + self.arm.delay_steps

    def _commit(self, lane: Lane) -> None:
        lane.commit_at = None
        contributions = []
        for index, state in enumerate(lane.states):
            sent = state.pending
            if sent is not None and self._chance.random() >= self.arm.missing_share:
                staleness = staleness_of(state.rule.mode, state.version, sent.base_version)
                contributions.append((index, Terms(sent.tokens, sent.steps, staleness), sent.encoded))
        rule, num_values = lane.states[0].rule, lane.states[0].num_values
        reduction = reduce_shard(contributions, rule, self._codec, num_values, lane.carried_error)
        if reduction is None:
            for replica, state in zip(self.replicas, lane.states, strict=True):
                change = state.take_back()
                if change is not None:
                    replica.add(lane.inside, change)
            return
        if self.arm.error_feedback:
            lane.carried_error = reduction.error
        terms = {index: term for index, term, _ in contributions}
        outer_lr, outer_momentum = shard_rates([terms[index] for index in reduction.included], rule)
        shares = dict(zip(terms, weights_of(list(terms.values()), rule), strict=True))
        mean = torch.empty(num_values)
        self._codec.decode(reduction.encoded, mean)
        commit_tokens = sum(term.tokens for term in terms.values())
        for index, (replica, state) in enumerate(zip(self.replicas, lane.states, strict=True)):
            is_in = index in reduction.included
            shard = CommittedShard(0, num_values, reduction.encoded, outer_lr, is_in, outer_momentum)
            if index in shares:
                state.own_share = shares[index]
            self._note_projection(lane, index, mean)
            momentum = state.momentum.clone() if self.arm.momentum_lookahead else None
            change, _ = state.apply([shard], commit_tokens)
            if momentum is not None:
                ahead = self.arm.momentum_lookahead * self.lookahead_rate
                change.sub_(state.momentum - momentum, alpha=ahead)
            if rule.mode == "streaming":
                replica.ref[lane.inside].copy_(state.anchor)
                replica.live[lane.inside].lerp_(state.anchor, 1 - self.arm.merge_alpha)
                lane.base_versions[index] = state.version
            else:
                replica.add(lane.inside, change)
            if not lane.steps_since_send:
                lane.base_versions[index] = state.version
        self.num_commits += 1

    def _note_projection(self, lane: Lane, index: int, mean: Tensor) -> None:
        sent = lane.states[index].pending
        if sent is None:
            return
        work = torch.empty_like(mean)
        self._codec.decode(sent.encoded, work)
        projection = float(mean @ work) / max(float(work @ work), 1e-30)
        self.projections.append(projection)
        if self.arm.adaptive_gain:
            scale = self.arm.adaptive_gain * self.arm.outer_lr * (1 + self.arm.outer_momentum)
            lane.gains[index] = min(1.0, max(0.0, scale * projection))


def run_data_parallel(arm: Arm, task: Task, seed: int, steps_between_losses: int) -> Outcome:
    """The mean gradient of all peers' batches at every step: one replica that reads all of their data."""
    replica = Replica(0, task, seed, num_shares=arm.num_peers)
    curve = []
    for step in range(1, task.num_steps + 1):
        replica.step(step - 1)
        if step % steps_between_losses == 0 or step == task.num_steps:
            curve.append((step, _loss(task, replica.model)))
    num_bytes = 4 * replica.live.numel() * task.num_steps
    return Outcome(tuple(curve), curve[-1][1], None, num_bytes, task.num_steps)


def run_arm(arm: Arm, task: Task, seed: int, steps_between_losses: int) -> Outcome:
    """Train one arm from `seed`, which decides the initial parameters, the data and who misses which round."""
    if arm.mode == DATA_PARALLEL:
        return run_data_parallel(arm, task, seed, steps_between_losses)
    return Swarm(arm, task, seed).run(steps_between_losses)


def _places(layout: FragmentLayout) -> list[slice]:
    ends = [0, *np.cumsum(layout.sizes).tolist()]
    return [slice(start, end) for start, end in pairwise(ends)]


def _loss(task: Task, model: nn.Module) -> float:
    assert isinstance(model, GPT)
    return held_out_loss(model, task.corpus, task.evaluation_batches, task.training.batch_size)
