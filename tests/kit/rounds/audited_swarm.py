"""An exchange swarm with a reducer that lies."""

from __future__ import annotations

import numpy as np

from averaging.outer.outer_settings import OuterRule
from averaging.rounds.round_facts import PeerRefused
from tests.kit.rounds.exchange_swarm import Swarm

RULE = OuterRule("carry", 0.7, 0.5, overlay_gain=0.7, combine="centered_clip", clip_norm_ratio=2.0, audit_fraction=2.0)


def swarm_of(num_peers, rule=RULE, seed=1):
    """Everybody audits by a chance of its own."""
    swarm = Swarm(num_peers, rule=rule, seed=seed)
    for number, peer in enumerate(swarm.live()):
        peer.chance = np.random.default_rng(100 * seed + number).random
    return swarm


def refusals(swarm, *besides):
    """{(who was refused, by whom, kind)}."""
    return {
        (report.peer_id, peer.name, kind)
        for peer in swarm.live()
        if peer not in besides
        for report in peer.reports
        if isinstance(report, PeerRefused)
        for kind, _ in report.counts
    }


def accused_by(swarm, kind, *besides):
    found = {}
    for remote, by, of_kind in refusals(swarm, *besides):
        if of_kind == kind:
            found.setdefault(remote, set()).add(by)
    return found
