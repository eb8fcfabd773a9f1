"""The offer that a fragment's work makes to the leader of its next round."""

from __future__ import annotations

from averaging.contributions import Announced, Sent
from averaging.fragment_runtime import FragmentRuntime
from averaging.messages import Offer


def offer_of(
    fragment: FragmentRuntime, work: Announced | Sent, upload_bits_per_second: float, *, reachable: bool
) -> Offer:
    """An offer of `work` on the anchor that is here, for the first attempt at a round."""
    return Offer(
        fragment.index,
        fragment.state.version,
        0,
        fragment.machine.anchor_digest,
        work.base_version,
        work.tokens,
        work.steps,
        work.sequence,
        upload_bits_per_second,
        reachable,
        fragment.state.num_rounds,
    )
