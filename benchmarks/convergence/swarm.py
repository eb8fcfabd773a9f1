"""Simulated swarms for this benchmark: M replicas in one process, virtual rounds, the averaging code that ships.

Every replica has its own parameters, optimizer state and data. What crosses between them goes through `FragmentState`,
`reduce_shard` and a codec, exactly as in a peer. Work is received, sent and reduced, and the change that a commit makes
is added to the live parameters. Time is counted in inner steps: the round that begins at a send is committed
`delay_rounds * sync_every` steps later. A peer has one contribution of a fragment under way at a time. So with a delay
of more than one round it sends more work less often. What is trained are tensors; what crosses are numpy arrays.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec, make_codec
from averaging.outer.contribution_weights import Terms, shard_rates, staleness_of, weights_of
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.fragment_layout import FragmentLayout, build_layout
from averaging.outer.fragment_schedule import SendSchedule
from averaging.outer.own_contributions import CommittedShard
from averaging.outer.shard_mean import reduce_shard
from benchmarks.convergence.arms import DATA_PARALLEL, Arm, Outcome, Task
from benchmarks.convergence.liars import lie_of
from benchmarks.convergence.replica import Replica, Replicas
from peer.trainer.model.evaluation import validation_loss
from peer.trainer.model.gpt import GPT

AVERAGED_SHARE = 0.25
"""The last part of a run, whose anchors are averaged for `Outcome.averaged_loss`."""


@dataclass
class Lane:
    """One fragment at all replicas.

    Attributes:
        commit_at: inner step at which the round under way is committed; None without one.
        base_versions: per replica, the anchor in the live parameters when the current block of work began.
        gains: per replica, the adaptive overlay gain; none before its first commit.
        hidden: per replica, the part of the error feedback that the live parameters do not show.
        carried_error: what the broadcasts so far lost.
        unsent_steps: per replica, inner steps since its last hand-over.
    """

    inside: slice
    states: list[FragmentState]
    commit_at: int | None
    base_versions: list[int]
    unsent_steps: list[int]
    gains: dict[int, float] = field(default_factory=dict)
    hidden: dict[int, F32] = field(default_factory=dict)
    carried_error: EncodedBlocks | None = None


class AnchorMean:
    """Mean of parameters as they come; NaN before the first."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._num_added = 0

    def add(self, parameters: Tensor) -> None:
        self._sum = parameters.clone() if self._sum is None else self._sum.add_(parameters)
        self._num_added += 1

    @property
    def mean(self) -> Tensor:
        return torch.tensor(float("nan")) if self._sum is None else self._sum / self._num_added


class Swarm:
    """`arm.num_peers` replicas that train on `task` from the same initial parameters."""

    def __init__(self, arm: Arm, task: Task, seed: int) -> None:
        self.arm = arm
        self.task = task
        self.num_commits = 0
        self.bytes_per_peer = 0
        self.lookahead_rate = arm.outer_lr * arm.outer_momentum**2
        self.projections: list[float] = []
        self.num_refused = 0
        self._averaged = AnchorMean()
        self._noise = torch.Generator().manual_seed(seed)
        self._chance = random.Random(f"missing {seed}")
        self._sequence = 0
        self._codec: Codec = make_codec(arm.codec, arm.block_size)
        self.replicas = Replicas(arm.num_peers, arm, task, seed)
        shapes = [(name, tuple(tensor.shape)) for name, tensor in self.replicas[0].model.named_parameters()]
        layout = build_layout(shapes, arm.num_fragments)
        self.lanes = [self._make_lane(inside) for inside in _places(layout)]
        self._schedule = SendSchedule(arm.sync_every, len(self.lanes))

    def run(self, steps_between_losses: int) -> Outcome:
        """Train to the end, then commit whatever is still under way or waiting."""
        curve = []
        for step in range(1, self.task.num_steps + 1):
            self.inner_step(step)
            if not bool(self.replicas.live.isfinite().all()):
                return Outcome(tuple(curve), float("nan"), step, self.bytes_per_peer, self.num_commits)
            self.after_inner_step(step)
            if step % steps_between_losses == 0 and step < self.task.num_steps:
                curve.append((step, self.anchor_loss()))
        live_loss = _loss(self.task, self.replicas[0].model)
        self.drain()
        curve.append((self.task.num_steps, self.anchor_loss()))
        projection = fmean(self.projections) if self.projections else float("nan")
        return Outcome(
            tuple(curve),
            live_loss,
            None,
            self.bytes_per_peer,
            self.num_commits,
            projection,
            _loss_of(self.task, self.replicas[0], self._averaged.mean),
            self.num_refused,
        )

    def inner_step(self, step: int) -> None:
        """Inner step `step` of the fastest replicas, counted from 1; slow ones are done with theirs now and then."""
        who = [index for index in range(self.arm.num_peers) if self.arm.has_step(index, step)]
        self.replicas.step(step - 1, who.__contains__)
        for lane in self.lanes:
            for index in who:
                lane.unsent_steps[index] += 1

    def after_inner_step(self, step: int) -> None:
        """Commit what is due, then send what is due; a round without delay is committed at once."""
        due = self._schedule.after_step(self.arm.sync_every)
        for index, lane in enumerate(self.lanes):
            if lane.commit_at == step:
                self._commit(lane)
            if index in due:
                self._hand_over(lane)
                if lane.commit_at is None:
                    self._send(lane, step)
            if lane.commit_at == step:
                self._commit(lane)
        if step % self.arm.sync_every == 0 and step >= (1 - AVERAGED_SHARE) * self.task.num_steps:
            self._averaged.add(self._anchors())

    def drain(self) -> None:
        """Commit the round under way, and what waits behind it."""
        for lane in self.lanes:
            if lane.commit_at is not None:
                self._commit(lane)
            self._hand_over(lane, everything=True)
            honest = lane.states[: self.arm.num_peers - self.arm.num_liars]
            if any(state.unsent_tokens for state in honest):
                self._send(lane, self.task.num_steps)
                self._commit(lane)

    def anchor_loss(self) -> float:
        """Validation loss of the anchors, which are the same at every replica."""
        return _loss_of(self.task, self.replicas[0], self._anchors())

    # ------------------------------------------------------------------------------------------------------ inside

    def _anchors(self) -> Tensor:
        anchors = torch.empty_like(self.replicas[0].live)
        for lane in self.lanes:
            anchors[lane.inside] = torch.from_numpy(lane.states[0].anchor)
        return anchors

    def _make_lane(self, inside: slice) -> Lane:
        rule = self.arm.rule()
        states = []
        for replica in self.replicas:
            anchor: F32 = replica.live[inside].numpy().copy()
            state = FragmentState(rule, self._codec, anchor, np.zeros_like(anchor), np.zeros_like(anchor))
            state.own_share = 1.0 if self.arm.own_weight is None else self.arm.own_weight
            states.append(state)
        return Lane(inside, states, None, [0] * len(states), [0] * len(states))

    def _hand_over(self, lane: Lane, everything: bool = False) -> None:
        """What `TrainerLink` sends and the network process receives."""
        needed = 1 if everything or self.arm.adapts_sync_every else self.arm.sync_every
        for index, (replica, state) in enumerate(zip(self.replicas, lane.states, strict=True)):
            steps = lane.unsent_steps[index]
            if steps < needed:
                continue
            tokens = steps * self.task.training.batch_size * self.task.model.context
            work = replica.ref[lane.inside] - replica.live[lane.inside]
            state.receive_work(work.numpy(), tokens, steps, lane.base_versions[index])
            replica.ref[lane.inside].copy_(replica.live[lane.inside])
            lane.base_versions[index] = state.version
            lane.unsent_steps[index] = 0

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
            if not self.arm.error_feedback:
                if rule.mode != "streaming":
                    replica.add(lane.inside, state.residual)
                state.residual.fill(0.0)
            if self.arm.residual_shown != 1.0:
                hidden = state.residual * (1 - self.arm.residual_shown)
                replica.add(lane.inside, hidden - lane.hidden.get(index, 0.0))
                lane.hidden[index] = hidden
        lane.commit_at = step + self.arm.delay_steps

    def _commit(self, lane: Lane) -> None:
        lane.commit_at = None
        contributions = []
        for index, state in enumerate(lane.states):
            sent = state.pending
            if sent is not None and self._chance.random() >= self.arm.missing_share:
                staleness = staleness_of(state.rule.mode, state.version, sent.base_version)
                encoded = sent.encoded
                if self.arm.lies(index):
                    encoded = lie_of(self.arm.lie, encoded, self._codec, self._noise)
                contributions.append((index, Terms(sent.tokens, sent.steps, staleness), encoded))
        rule, num_values = lane.states[0].rule, lane.states[0].num_values
        reduction = reduce_shard(contributions, rule, self._codec, num_values, lane.carried_error)
        if reduction is None:
            for replica, state in zip(self.replicas, lane.states, strict=True):
                change = state.take_back()
                if change is not None:
                    replica.add(lane.inside, change)
            return
        self.num_refused += len(reduction.refused)
        if self.arm.error_feedback:
            lane.carried_error = reduction.error
        terms = {index: term for index, term, _ in contributions}
        outer_lr, outer_momentum = shard_rates([terms[index] for index in reduction.included], rule)
        shares = dict(zip(terms, weights_of(list(terms.values()), rule), strict=True))
        mean: F32 = np.empty(num_values, dtype=np.float32)
        self._codec.decode(reduction.encoded, mean)
        commit_tokens = sum(term.tokens for term in terms.values())
        for index, (replica, state) in enumerate(zip(self.replicas, lane.states, strict=True)):
            is_in = index in reduction.included
            shard = CommittedShard(0, num_values, reduction.encoded, outer_lr, is_in, outer_momentum)
            if index in shares:
                state.own_share = shares[index] if self.arm.own_weight is None else self.arm.own_weight
            self._note_projection(lane, index, mean)
            momentum = state.momentum.copy() if self.arm.momentum_lookahead else None
            change, _ = state.apply([shard], commit_tokens)
            if momentum is not None:
                ahead = self.arm.momentum_lookahead * self.lookahead_rate
                torch.from_numpy(change).sub_(torch.from_numpy(state.momentum - momentum), alpha=ahead)
            if rule.mode == "streaming":
                anchor = torch.from_numpy(state.anchor)
                replica.ref[lane.inside].copy_(anchor)
                replica.live[lane.inside].lerp_(anchor, 1 - self.arm.merge_alpha)
                lane.base_versions[index] = state.version
            else:
                replica.add(lane.inside, change)
            if not lane.unsent_steps[index]:
                lane.base_versions[index] = state.version
        self.num_commits += 1

    def _note_projection(self, lane: Lane, index: int, mean: F32) -> None:
        sent = lane.states[index].pending
        if sent is None:
            return
        decoded = np.empty_like(mean)
        self._codec.decode(sent.encoded, decoded)
        work = torch.from_numpy(decoded)
        projection = float(torch.from_numpy(mean) @ work) / max(float(work @ work), 1e-30)
        self.projections.append(projection)
        if self.arm.adaptive_gain:
            scale = self.arm.adaptive_gain * self.arm.outer_lr * (1 + self.arm.outer_momentum)
            lane.gains[index] = min(1.0, max(0.0, scale * projection))


def run_data_parallel(arm: Arm, task: Task, seed: int, steps_between_losses: int) -> Outcome:
    """The mean gradient of all peers' batches at every step: one replica that reads all of their data."""
    replicas = Replicas(1, arm, task, seed, num_shares=arm.num_peers)
    replica = replicas[0]
    curve = []
    averaged = AnchorMean()
    for step in range(1, task.num_steps + 1):
        replicas.step(step - 1)
        if step % arm.sync_every == 0 and step >= (1 - AVERAGED_SHARE) * task.num_steps:
            averaged.add(replica.live)
        if step % steps_between_losses == 0 or step == task.num_steps:
            curve.append((step, _loss(task, replica.model)))
    num_bytes = 4 * replica.live.numel() * task.num_steps
    averaged_loss = _loss_of(task, replica, averaged.mean)
    return Outcome(tuple(curve), curve[-1][1], None, num_bytes, task.num_steps, averaged_loss=averaged_loss)


def run_arm(arm: Arm, task: Task, seed: int, steps_between_losses: int) -> Outcome:
    """Train one arm from `seed`, which decides the initial parameters, the data and who misses which round."""
    if arm.mode == DATA_PARALLEL:
        return run_data_parallel(arm, task, seed, steps_between_losses)
    return Swarm(arm, task, seed).run(steps_between_losses)


def _places(layout: FragmentLayout) -> list[slice]:
    ends = [0, *np.cumsum(layout.sizes).tolist()]
    return [slice(start, end) for start, end in pairwise(ends)]


def _loss_of(task: Task, replica: Replica, parameters: Tensor) -> float:
    live = replica.live.clone()
    replica.live.copy_(parameters)
    loss = _loss(task, replica.model)
    replica.live.copy_(live)
    return loss


def _loss(task: Task, model: nn.Module) -> float:
    assert isinstance(model, GPT)
    return validation_loss(model, task.corpus, task.evaluation_batches, task.training.batch_size)
