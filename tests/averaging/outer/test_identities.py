"""Three cases in which averaging must be something simpler; together they catch most wrong signs and weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from averaging.outer.outer_settings import OuterRule
from tests.kit.rounds.replicas import Replicas

H = 5


@pytest.fixture(autouse=True)
def _one_thread():
    """For vectors this small, threads cost far more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class LocalTraining:
    """A small classifier in one flat vector, trained on a peer's own stream of batches."""

    def __init__(self, data_seed, learning_rate=0.1, optimizer=torch.optim.SGD, **options):
        torch.manual_seed(7)
        self.module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        self.optimizer = optimizer(self.module.parameters(), learning_rate, **options)
        self.data_seed, self.step = data_seed, 0

    @property
    def values(self):
        return torch.cat([parameter.detach().flatten() for parameter in self.module.parameters()]).numpy()

    @values.setter
    def values(self, flat):
        torch.nn.utils.vector_to_parameters(torch.from_numpy(flat.copy()), self.module.parameters())

    def batch(self, size=16):
        generator = torch.Generator().manual_seed(1000 * self.data_seed + self.step)
        inputs = torch.randn(size, 6, generator=generator)
        return inputs, (inputs[:, :3] + 0.3 * inputs[:, 3:]).argmax(dim=1)

    def train(self, num_steps):
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            inputs, targets = self.batch()
            cross_entropy(self.module(inputs), targets).backward()
            self.optimizer.step()
            self.step += 1


def run_swarm(rule, trainings, num_rounds, num_steps=H):
    """Anchors after each round; each peer starts from what its state shows, which is A here."""
    swarm = Replicas(rule, "fp32", trainings[0].values, len(trainings))
    anchors = []
    for _ in range(num_rounds):
        for peer, training in enumerate(trainings):
            start = swarm.states[peer].shown()
            training.values = start
            training.train(num_steps)
            swarm.live[peer] = training.values
            swarm.send(peer, start - training.values, tokens=16 * num_steps, steps=num_steps)
        swarm.commit()
        anchors.append(swarm.states[0].anchor.copy())
        for state in swarm.states:
            assert state.refresh_digest() == swarm.states[0].digest
    return anchors


@pytest.mark.parametrize(("eta", "beta"), [(0.7, 0.9), (1.0, 0.0), (0.3, 0.5)])
@pytest.mark.parametrize("mode", ["sync", "streaming", "eager", "carry"])
def test_one_peer_is_local_diloco_bit_for_bit(mode, eta, beta):
    training = LocalTraining(1, 0.01, torch.optim.AdamW)
    anchor, momentum, expected = training.values, np.zeros_like(training.values), []
    for _ in range(6):
        training.values = anchor
        training.train(H)
        gradient = anchor - training.values
        momentum = momentum * beta + gradient
        anchor = anchor - (momentum * beta + gradient) * eta
        expected.append(anchor)
    anchors = run_swarm(OuterRule(mode, eta, beta), [LocalTraining(1, 0.01, torch.optim.AdamW)], 6)
    assert all(np.array_equal(left, right) for left, right in zip(anchors, expected, strict=True))
    assert not np.array_equal(expected[0], expected[5])


@pytest.mark.parametrize("num_peers", [2, 3, 4, 8])
@pytest.mark.parametrize("codec_free_mode", ["sync", "streaming"])
def test_peers_with_the_same_data_are_one_peer(codec_free_mode, num_peers):
    rule = OuterRule(codec_free_mode, 0.7, 0.9)
    alone = run_swarm(rule, [LocalTraining(1)], 6)
    together = run_swarm(rule, [LocalTraining(1) for _ in range(num_peers)], 6)
    for left, right in zip(alone, together, strict=True):
        if num_peers & (num_peers - 1) == 0:
            assert np.array_equal(left, right)
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_steps", [1, 2, 7])
@pytest.mark.parametrize("num_peers", [2, 5])
def test_outer_sgd_with_lr_1_averages_parameters(num_peers, num_steps):
    """Whatever the number of inner steps between two averages."""
    trainings = [LocalTraining(peer) for peer in range(num_peers)]
    average, expected = trainings[0].values, []
    for _ in range(5):
        for training in trainings:
            training.values = average
            training.train(num_steps)
        average = np.mean([training.values for training in trainings], axis=0)
        expected.append(average)
    anchors = run_swarm(OuterRule("sync", 1.0, 0.0), [LocalTraining(peer) for peer in range(num_peers)], 5, num_steps)
    for left, right in zip(anchors, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
