"""A peer's own part of a fragment beside the residual: what it has under way and what became of its last rounds.

Kept in checkpoints, so that a peer that returns can tell which of its work the swarm has, and none comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from averaging.arrays import F32
from averaging.codec.blocks import Buffer
from averaging.outer.contributions import Ranges, Sent, Settled
from averaging.outer.fragment_state import FragmentState


@dataclass(frozen=True, slots=True)
class OwnWork:
    """The fields of `FragmentState` that belong to this peer alone, the residual excepted.

    Attributes:
        under_way: the contribution that travels.
        settled: contributions of the last rounds, oldest first.
        velocity: float32 [num_values]; None when the mode has none or nothing was sent yet. Not a copy.
        dropped: see `FragmentState`.
    """

    unsent_tokens: int = 0
    unsent_steps: int = 0
    unsent_base_version: int = 0
    own_share: float = 1.0
    shown_share: float = 1.0
    num_rounds: int = 0
    returned_since: int | None = None
    under_way: Sent | None = None
    settled: tuple[Settled, ...] = ()
    velocity: F32 | None = None
    dropped: tuple[tuple[int, int], ...] = ()

    @property
    def last_sequence(self) -> int:
        """Of the newest contribution known here; -1 without any."""
        newest = [*(entry.sent.sequence for entry in self.settled), *(sequence for sequence, _ in self.dropped)]
        return max(newest if self.under_way is None else [*newest, self.under_way.sequence], default=-1)


def own_work_of(state: FragmentState) -> OwnWork:
    """What `state` has now; its arrays are shared, not copied."""
    return OwnWork(
        state.unsent_tokens,
        state.unsent_steps,
        state.unsent_base_version,
        state.own_share,
        state.shown_share,
        state.num_rounds,
        state.returned_since,
        state.pending,
        tuple(state.recent),
        state.velocity,
        tuple(state.dropped),
    )


def give_back_own_work(state: FragmentState, work: OwnWork) -> None:
    """Put into `state` what `own_work_of` returned; the residual is the caller's."""
    state.unsent_tokens, state.unsent_steps = work.unsent_tokens, work.unsent_steps
    state.unsent_base_version = work.unsent_base_version
    state.own_share, state.shown_share, state.num_rounds = work.own_share, work.shown_share, work.num_rounds
    state.returned_since = work.returned_since
    state.pending, state.recent = work.under_way, list(work.settled)
    state.velocity = None if work.velocity is None else work.velocity.copy()
    state.dropped = list(work.dropped)


def move_settled(state: FragmentState, settled: Settled, scales: Buffer, codes: Buffer) -> None:
    """The bytes of a contribution of an earlier round lie there from now on; nothing happens if it is forgotten."""
    sent = replace(settled.sent, encoded=replace(settled.sent.encoded, scales=scales, codes=codes))
    sequence = sent.sequence
    state.recent = [replace(one, sent=sent) if one.sent.sequence == sequence else one for one in state.recent]


def is_fate_known(left_version: int, version: int, last_sequence: int, own: Mapping[int, tuple[int, Ranges]]) -> bool:
    """Whether the commits from `left_version` to `version` show that nothing was sent after `last_sequence`.

    Args:
        own: per version whose commit is known: (sequence of the own contribution in it or -1, its committed values).
    """
    return all(between in own and own[between][0] <= last_sequence for between in range(left_version, version))
