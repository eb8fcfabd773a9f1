"""What a restarted network process finds in shared memory of the contribution under way and the waiting work."""

from __future__ import annotations

import numpy as np
import pytest

from averaging.codec.codec import make_codec
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard, Sent
from dht.ground.host import PeerId
from peer.config.manifest import AveragingSection
from peer.mailbox.mailbox import Mailbox
from peer.network.node.fragment_memory import build_fragments, inherited, persist
from tests.kit.notaries import notary_of

SIZE = 300
ME = PeerId("12D3KooWMe")
RULE = OuterRule("carry", 0.7, 0.5)


def written_and_found(codec_name: str) -> tuple[FragmentState, Sent | None]:
    codec = make_codec(codec_name, 16)
    mailbox = Mailbox.in_process([SIZE], [codec.encoded_num_bytes(SIZE)])
    (fragment,) = build_fragments(ME, "run", AveragingSection(), RULE, codec, mailbox, notary_of(ME))
    state = fragment.state
    state.version = 6
    state.refresh_digest()
    state.receive_work(np.linspace(-1.0, 1.0, SIZE, dtype=np.float32), 70, 7, 5)
    persist(mailbox, fragment)
    assert inherited(mailbox.states[0], codec) is None
    state.send(2)
    persist(mailbox, fragment)
    return state, inherited(mailbox.states[0], codec)


@pytest.mark.parametrize("codec_name", ["int4", "fp32"])
def test_a_contribution_under_way_is_found_as_it_was(codec_name: str) -> None:
    state, found = written_and_found(codec_name)
    assert found is not None
    assert found == state.pending


def test_the_ranges_of_work_under_way_and_of_waiting_work_are_found_as_they_were() -> None:
    codec = make_codec("int4", 16)
    mailbox = Mailbox.in_process([SIZE], [codec.encoded_num_bytes(SIZE)])
    (fragment,) = build_fragments(ME, "run", AveragingSection(), RULE, codec, mailbox, notary_of(ME))
    state, work = fragment.state, np.linspace(-1.0, 1.0, SIZE, dtype=np.float32)
    for version in range(2):
        state.receive_work(work, 70, 7, version)
        state.send(1 + version)
        if not version:
            shards = [CommittedShard(0, 96, None, 0.5, own_included=True), CommittedShard(96, SIZE, None, 0.5, False)]
            state.apply(shards, 10)
    state.take_back()
    state.receive_work(work, 5, 1, 1)
    state.send(3)
    state.apply([CommittedShard(0, 96, None, 0.5, own_included=False), CommittedShard(96, SIZE, None, 0.5, True)], 10)
    state.receive_work(work, 9, 1, 1)
    state.send(4)
    state.apply([CommittedShard(0, 32, None, 0.5, own_included=True), CommittedShard(32, SIZE, None, 0.5, False)], 10)
    state.refresh_digest()
    persist(mailbox, fragment)
    shared = mailbox.states[0]
    assert [(part.end, part.tokens) for part in state.unsent_parts] == [(32, 0), (96, 84), (SIZE, 9)]
    assert (shared.unsent_parts, shared.unsent_tokens) == (state.unsent_parts, state.unsent_tokens)
    state.send(5)
    persist(mailbox, fragment)
    assert (shared.unsent_parts, inherited(shared, codec)) == ((), state.pending)
    assert state.pending is not None
    assert len(state.pending.parts) == 3
