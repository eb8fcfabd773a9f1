"""State, machine and store of one fragment, while its rounds run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from averaging.fragment.shard_store import ShardStore
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.rounds.round_machine import RoundMachine
from averaging.signing.commit_chains import Chain
from averaging.signing.commit_log import CommitLog
from averaging.wire.messages import DIGEST_BYTES, Commit, own_entry, own_ranges
from dht.ground.host import PeerId

NO_DIGEST = bytes(32)
"""Digest of a torn anchor."""


@dataclass
class RoundTraffic:
    """Bytes and values sent and received in the fragment's current round, and when that round began."""

    began_at: float = 0.0
    up_bytes: int = 0
    up_values: int = 0
    down_bytes: int = 0
    down_values: int = 0

    def begin(self, now: float) -> None:
        self.began_at = now
        self.up_bytes = self.up_values = self.down_bytes = self.down_values = 0

    def sent(self, num_bytes: int, num_values: int = 0) -> None:
        """Count a queued frame."""
        self.up_bytes += num_bytes
        self.up_values += num_values

    def received(self, num_bytes: int, num_values: int = 0) -> None:
        self.down_bytes += num_bytes
        self.down_values += num_values


@dataclass
class FragmentRuntime:
    """State, machine and store of one fragment.

    Attributes:
        of_buffers: whether the values are running statistics, which have a separate rule and codec.
        is_torn: whether a change of the anchor ended halfway. The anchor can then only be replaced.
    """

    index: int
    state: FragmentState
    machine: RoundMachine
    store: ShardStore
    changing: Callable[[], AbstractContextManager[object]] = nullcontext
    of_buffers: bool = False
    is_torn: bool = field(default=False, init=False)
    persist: Callable[[], None] = lambda: None
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the state changes, or is copied."""
    traffic: RoundTraffic = field(default_factory=RoundTraffic)

    def restart(self, commits: Sequence[Commit] | None = None) -> None:
        """Continue the rounds from the state's version.

        Args:
            commits: the commits that led to this version; None means the known commits.
        """
        state = self.state
        self.machine.restart(state.version, state.digest[:DIGEST_BYTES], state.lineage_tokens, commits)
        self.log.note_anchor(state.version, state.digest)

    @property
    def log(self) -> CommitLog:
        """The stored commits and digests of this fragment's lineage."""
        return self.machine.log

    @contextmanager
    def change(self) -> Iterator[None]:
        """Change the anchor inside this context. An exception marks the anchor as torn and removes its digest."""
        try:
            with self.changing():
                yield
        except BaseException:
            self.is_torn = True
            self.state.digest = NO_DIGEST
            raise
        self.is_torn = False

    def enter_lineage(self, set_state: Callable[[FragmentState], None], commits: Sequence[Commit], me: PeerId) -> int:
        """Replace the anchor with one from the swarm, and give up own work that it may already contain.

        Args:
            set_state: puts the new anchor into the state.
            commits: recent commits of the new lineage.

        Returns:
            Tokens of own work that this peer gave up, or that only the old lineage has committed since the fork, as far
            as the stored commits show. Work in `commits` does not count.
        """
        state, left_version, known = self.state, self.state.version, self.anchors()
        sent = state.pending
        under_way = {} if sent is None else {sent.sequence: sent.tokens}
        waiting = state.unsent_tokens + sum(under_way.values())
        leaving = [commit for commit in commits if commit.version == left_version]
        # When the anchor was torn, an unknown part of the work under way had already returned.
        is_missed = bool(leaving) and not self.is_torn and not under_way.keys() & _own_tokens(leaving, me).keys()
        with self.change():
            set_state(state)
            common_version = Chain(tuple(commits), state.version, state.digest).fork_from(known)
            state.settle_in_new_lineage(left_version, common_version, is_pending_missed=is_missed)
        since = left_version if common_version is None else common_version
        left = _own_tokens((commit for commit in self.log.newest.values() if commit.version >= since), me)
        self.store.forget_errors()
        self.log.digests.clear()
        self.log.note_anchor(state.version, state.digest)
        self.log.replace(commit for commit in commits if commit.version < state.version)
        there = _own_tokens(commits, me)
        lost = sum(tokens for sequence, tokens in left.items() if sequence not in there)
        there_now = sum(tokens for sequence, tokens in under_way.items() if sequence in there)
        return waiting - state.unsent_tokens - there_now + lost

    def had(self, version: int, digest: bytes) -> bool:
        """Return whether this peer's anchor at that version has, or had, a digest that begins with `digest`, as far as
        remembered.
        """
        if version == self.state.version:
            return self.state.digest.startswith(digest)
        return self.log.had(version, digest)

    def anchors(self) -> dict[int, bytes]:
        """Return version -> digest (in the form of messages) of all remembered anchors of this lineage."""
        return {**self.log.anchors(), self.state.version: self.state.digest[:DIGEST_BYTES]}


def _own_tokens(commits: Iterable[Commit], me: PeerId) -> dict[int, int]:
    """Return sequence -> tokens of one peer's contributions of which these commits include a part."""
    found = ((own_entry(commit.roster, me), own_ranges(commit, me)) for commit in commits)
    return {own[1].sequence: own[1].tokens for own, (_, ranges) in found if own is not None and ranges}
