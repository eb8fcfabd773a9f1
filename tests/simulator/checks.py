"""What must hold in every simulated swarm once it has settled."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np

from dht.ground.host import PeerId
from tests.kit.trainer.trainer_link import unsent_work
from tests.simulator.peer import Life, SimulatedPeer

TOLERANCE = 1e-4
"""Between live parameters of order 0.1..1 and the sum they must equal, after thousands of float32 additions."""
ENOUGH_SYNCS = 3
"""A peer that has sent so often must be in a commit; an earlier send may just have missed its round."""
ENOUGH_SYNCS_AMONG_FAULTS = 12
"""The same where faults follow each other closely, as in a random swarm."""


def honest_lives(peers: Sequence[SimulatedPeer]) -> list[Life]:
    """Those of peers that run now and do not lie: what liars hold proves nothing."""
    return [peer.life for peer in peers if peer.life is not None and peer.profile.lie is None]


def has_settled(peers: Sequence[SimulatedPeer]) -> bool:
    """Whether all live peers hold equal anchors and no work is under way anywhere."""
    return anchors_are_equal(peers) and all(map(_is_idle, honest_lives(peers)))


def anchors_are_equal(peers: Sequence[SimulatedPeer]) -> bool:
    """Whether all honest live peers hold the same version and digest of every fragment."""
    held = {
        tuple((fragment.machine.version, fragment.state.digest) for fragment in life.node.exchange.fragments)
        for life in honest_lives(peers)
    }
    return len(held) <= 1


def violations(
    peers: Sequence[SimulatedPeer], contributors: Container[PeerId], enough_syncs: int = ENOUGH_SYNCS
) -> Iterator[str]:
    """Sentences about what does not hold, none when all is well.

    Args:
        contributors: PeerIds that are in at least one commit.
        enough_syncs: a peer that has sent so often must be among them.
    """
    yield from _forks(peers)
    for peer in peers:
        for past in peer.lives:
            yield from past.failures
        for life in honest_lives([peer]):
            link = life.work.link
            if link.inner_steps >= enough_syncs * link.sync_every and peer.identity.peer_id not in contributors:
                yield f"peer {peer.index} took {link.inner_steps} inner steps but is in no commit"
            yield from _digests(life)
            yield from _shown(life)


def _is_idle(life: Life) -> bool:
    if life.is_restarting:
        return False
    node, mailbox = life.node, life.mailbox
    fragments = node.exchange.fragments
    # A blend waits for an inner step that never comes once training is over.
    is_delivered = node.rule.mode == "streaming" or (mailbox.inbox.num_free() == 2 and not node.desk.undelivered)
    return (
        bool(mailbox.network.ready)
        and mailbox.outbox.num_free() == 2
        and is_delivered
        and all(fragment.state.pending is None and not fragment.state.unsent_tokens for fragment in fragments)
        and all(one.machine.applying is None and not node.exchange.applying.is_repairing(one) for one in fragments)
    )


def _forks(peers: Sequence[SimulatedPeer]) -> Iterator[str]:
    """Equal versions must have equal digests."""
    seen: dict[tuple[int, int], tuple[bytes, int]] = {}
    for life in honest_lives(peers):
        for fragment in life.node.exchange.fragments:
            key = (fragment.index, fragment.state.version)
            digest, first = seen.setdefault(key, (fragment.state.digest, life.index))
            if digest != fragment.state.digest:
                yield f"peers {first} and {life.index} hold different anchors at fragment {key[0]} version {key[1]}"


def _digests(life: Life) -> Iterator[str]:
    for fragment in life.node.exchange.fragments:
        told = fragment.state.digest
        if fragment.state.version != fragment.machine.version or told[:8] != fragment.machine.anchor_digest[:8]:
            yield f"peer {life.index}: state and round machine of fragment {fragment.index} disagree on the version"
        if fragment.state.refresh_digest() != told:
            yield f"peer {life.index}: the anchor of fragment {fragment.index} does not have the digest it announces"


def _shown(life: Life) -> Iterator[str]:
    """Live parameters = A - O - r - L, see `averaging.outer.outer_step`; blending (mode streaming) is outside of that
    sum."""
    if life.node.rule.mode == "streaming" or not _is_idle(life):
        return
    parameters = life.work.parameters
    for fragment, runtime in zip(life.work.link.layout.fragments, life.node.exchange.fragments, strict=True):
        expected = runtime.state.shown() - unsent_work(life.work.link, fragment.index).numpy()
        live = np.empty_like(expected)
        for piece in fragment.pieces:
            flat = parameters[piece.name]
            live[piece.offset : piece.offset + piece.length] = flat[piece.start : piece.start + piece.length]
        gap = float(np.abs(live - expected).max())
        if not gap <= TOLERANCE:
            yield f"peer {life.index}: live parameters of fragment {fragment.index} are off by {gap:.2g}"
