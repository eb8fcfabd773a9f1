"""What a restarted network process finds in shared memory of the contribution under way and the waiting work."""

from __future__ import annotations

import numpy as np
import pytest

from averaging.codec.codec import make_codec
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import Sent
from dht.host import PeerId
from peer.config.manifest import AveragingSection
from peer.mailbox.mailbox import Mailbox
from peer.network.node.fragment_memory import build_fragments, inherited, persist
from tests.kit.notaries import notary_of

SIZE = 300
ME = PeerId("12D3KooWMe")
RULE = OuterRule("carry", 0.7, 0.5)


def written_and_found(codec_name: str, scale: str) -> tuple[FragmentState, Sent | None]:
    codec = make_codec(codec_name, 16, scale=scale)
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


@pytest.mark.parametrize(
    ("codec_name", "scale"), [("int4", "bf16"), ("int4", "fp32"), ("e3m0", "pow2"), ("fp16", "bf16")]
)
def test_a_contribution_under_way_is_found_as_it_was(codec_name: str, scale: str) -> None:
    state, found = written_and_found(codec_name, scale)
    assert found is not None
    assert found == state.pending
