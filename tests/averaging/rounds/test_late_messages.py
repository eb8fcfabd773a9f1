"""Messages that come minutes late, in another order, or again and again: nothing is applied twice, nothing is lost."""

from __future__ import annotations

import random
from collections import deque

import pytest

from averaging.rounds.machine_events import Apply, Heard, SendShards
from averaging.wire.messages import Commit, Plan
from tests.kit.rounds.round_swarm import RoundSwarm


def put(swarm, key, message):
    sender, to, _ = key
    if swarm.members[sender].is_live and swarm.members[to].is_live:
        swarm.queues.setdefault(key, deque()).append(message)


def run_all(swarm, chance):
    for _ in swarm.run(chance):
        pass


def troubled(seed, *, num_replays, num_delays):
    """Rounds in which any message may be held back for up to ten minutes, and any old one may come again."""
    chance = random.Random(f"late {seed}")
    swarm = RoundSwarm(chance.choice([2, 3, 4, 5]), num_blocks=chance.choice([1, 2, 4]))
    seen, held = [], []
    for _ in range(5):
        swarm.tasks += [("work", name, None) for name in swarm.names]
        for _ in swarm.run(chance):
            if swarm.queues:
                key = chance.choice(sorted(swarm.queues))
                seen.append((key, swarm.queues[key][0]))
                if num_delays and chance.random() < 0.05:
                    num_delays -= 1
                    held.append((swarm.now + chance.uniform(60.0, 600.0), key, swarm.queues[key].popleft()))
                    if not swarm.queues[key]:
                        del swarm.queues[key]
            if num_replays and seen and chance.random() < 0.1:
                num_replays -= 1
                put(swarm, *chance.choice(seen))
            for entry in [entry for entry in held if entry[0] <= swarm.now]:
                held.remove(entry)
                put(swarm, *entry[1:])
    swarm.now += 600.0
    for _, key, message in held:
        put(swarm, key, message)
    run_all(swarm, chance)
    return swarm, seen, chance


@pytest.mark.parametrize("first_seed", range(0, 60, 20))
@pytest.mark.parametrize(("num_replays", "num_delays"), [(60, 0), (0, 8), (40, 8)])
def test_late_and_repeated_messages_cost_nothing(first_seed, num_replays, num_delays):
    for seed in range(first_seed, first_seed + 20):
        swarm, _, chance = troubled(seed, num_replays=num_replays, num_delays=num_delays)
        for _ in range(3):
            swarm.audit()
            run_all(swarm, chance)
        swarm.assert_agreement()
        for name in swarm.names:
            assert not swarm.lost_units(name)
            swarm.work(name)
        run_all(swarm, chance)
        swarm.assert_agreement()
        assert not any(swarm.members[name].waiting or swarm.members[name].pending for name in swarm.names)


def test_everything_that_was_ever_said_may_be_said_again_an_hour_later():
    """No anchor moves, no work is sent, whatever the order."""
    swarm, seen, chance = troubled(1, num_replays=0, num_delays=0)
    assert any(isinstance(message, Commit) for _, message in seen)
    assert any(isinstance(message, Plan) for _, message in seen)
    before = [(m.machine.version, m.machine.anchor_digest, m.lineage) for m in swarm.members.values()]
    assert swarm.members[swarm.names[0]].machine.version >= 3
    swarm.now += 3600.0
    for key, message in chance.sample(seen, len(seen)):
        if not isinstance(message, tuple):
            effects = swarm.members[key[1]].machine.step(Heard(key[0], message), swarm.now)
            assert not any(isinstance(effect, Apply | SendShards) for effect in effects)
    assert [(m.machine.version, m.machine.anchor_digest, m.lineage) for m in swarm.members.values()] == before
