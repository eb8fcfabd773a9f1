"""Compute credit from signed commits: each member's tokens, their witnesses, and the choice between two histories.
Pure.

A round averages one fragment, so a contribution of n tokens counts n times the share of the model's parameters that was
averaged. One pass over all fragments thus counts each token once. A contribution is *witnessed* if another member
signed for it: the reducer of a mean that contains it, or the leader, which accepted the offer and checked its tokens.
It is only *reported* if only the contributor signed, as when a peer trains alone.

Two commits of one version are a fork. Each contains the digest of the previous commit, so commits form chains. Only the
chain with the most witnessed tokens counts (then the most tokens, then the greatest digest). The result depends only on
the set of commits, not on their order or repetition.

`counted` applies this rule to a whole file, `Lineage` to one commit after the other, with the same result. Credit is in
whole thousandths of a token, so that sums are exact. Nothing overflows: one share saturates at `MAX_SHARE_MILLI`, and
sums are Python integers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from averaging.wire.frames import commit_digest_whole
from averaging.wire.messages import DIGEST_BYTES, Commit
from dht.ground.host import PeerId

MAX_SHARE_MILLI: Final = 2**50
"""The most thousandths of a token that one commit credits to one machine: 10^12 tokens, a year of a large cluster.
Larger claims are reduced to this, so that sums over any history that can be stored fit 64 bits."""
MAX_TOKENS: Final = 2**62
"""The largest weight of a commit in a fork, in tokens."""
MAX_FORKS: Final = 8
"""Commits of one version that are kept, those with the most tokens: forks have two or three sides, a flood any
number."""


class MachineShare(NamedTuple):
    """One machine's share of one commit, in credited thousandths of a token; 0 if none of its work was averaged.

    A tuple, because a starting dashboard reads millions of them.
    """

    peer_id: PeerId
    milli_tokens: int
    is_witnessed: bool

    @property
    def milli_witnessed(self) -> int:
        return self.milli_tokens if self.is_witnessed else 0


@dataclass(frozen=True, slots=True)
class CreditedRound:
    """The fields of a commit that determine credit. Its creator has checked the signatures.

    Attributes:
        digest: `averaging.wire.frames.commit_digest_whole`.
        previous: first 16 bytes of the digest of the previous commit; empty if its leader did not know it.
        tokens: tokens of all members, as averaged into this fragment (`Commit.tokens`).
        shares: the shares of all members in the roster.
    """

    fragment: int
    version: int
    digest: bytes
    previous: bytes
    leader: PeerId
    tokens: int
    shares: tuple[MachineShare, ...]

    @property
    def milli_witnessed(self) -> int:
        """Credited thousandths of tokens that other members witnessed."""
        return sum(share.milli_witnessed for share in self.shares)


def round_of(commit: Commit, num_parameters: int) -> CreditedRound:
    """Return the credit of a commit. `num_parameters`: number of parameters of the whole model."""
    token_values = commit.token_values
    witnessed = [False] * len(commit.roster)
    for result in commit.shards:
        reducer = commit.roster[result.reducer].peer_id
        for member in result.included:
            peer_id = commit.roster[member].peer_id
            witnessed[member] |= not reducer == peer_id == commit.leader
    shares = tuple(
        MachineShare(entry.peer_id, milli(1, token_values[member], num_parameters), witnessed[member])
        for member, entry in enumerate(commit.roster)
    )
    digest, tokens = commit_digest_whole(commit), min(commit.tokens, MAX_TOKENS)
    return CreditedRound(commit.fragment, commit.version, digest, commit.previous, commit.leader, tokens, shares)


def milli(tokens: int, num_values: int, num_parameters: int) -> int:
    """Return the thousandths of tokens that were averaged into `num_values` of a model's parameters; exact, halves to
    even.
    """
    quotient, rest = divmod(1000 * tokens * num_values, num_parameters)
    is_up = 2 * rest > num_parameters or (2 * rest == num_parameters and quotient % 2)
    return min(quotient + is_up, MAX_SHARE_MILLI)


def counted(rounds: Iterable[CreditedRound]) -> list[CreditedRound]:
    """Return the commits that count: one chain for each fragment, by version.

    If commits are missing, or a leader did not know the previous one, a chain continues from the heaviest chain below.
    """
    known: dict[int, dict[bytes, CreditedRound]] = {}
    lineages: dict[int, Lineage] = {}
    for one in rounds:
        known.setdefault(one.fragment, {})[one.digest] = one
        lineages.setdefault(one.fragment, Lineage()).put(Link.of(one))
    return [known[fragment][digest] for fragment, lineage in sorted(lineages.items()) for digest in lineage.settle()[1]]


def missing_versions(rounds: Iterable[CreditedRound]) -> dict[int, list[range]]:
    """Return for each fragment the versions without a commit between the oldest and the newest known commit."""
    versions: dict[int, set[int]] = {}
    for one in rounds:
        versions.setdefault(one.fragment, set()).add(one.version)
    found = {}
    for fragment, known in sorted(versions.items()):
        ordered = sorted(known)
        found[fragment] = [range(low + 1, high) for low, high in pairwise(ordered) if high > low + 1]
    return {fragment: gaps for fragment, gaps in found.items() if gaps}


@dataclass
class MachineTotal:
    """One machine's credit, in the units of `MachineShare`."""

    peer_id: PeerId
    milli_witnessed: int = 0
    milli_reported: int = 0
    """From all commits, with or without a witness: never less than `milli_witnessed`."""
    rounds: int = 0
    rounds_missed: int = 0
    """Rounds whose plan contained the machine but whose means do not."""


def totals(rounds: Sequence[CreditedRound]) -> list[MachineTotal]:
    """Return the totals of all machines in these rounds, the most witnessed tokens first. Apply `counted` before."""
    found: dict[PeerId, MachineTotal] = {}
    for one in rounds:
        for share in one.shares:
            total = found.setdefault(share.peer_id, MachineTotal(share.peer_id))
            total.milli_reported += share.milli_tokens
            total.milli_witnessed += share.milli_tokens if share.is_witnessed else 0
            total.rounds += bool(share.milli_tokens)
            total.rounds_missed += not share.milli_tokens
    return sorted(found.values(), key=lambda one: (-one.milli_witnessed, -one.milli_reported, one.peer_id))


@dataclass(frozen=True, slots=True)
class Link:
    """The fields of a commit that a lineage needs; attributes as in `CreditedRound`."""

    version: int
    digest: bytes
    previous: bytes
    milli_witnessed: int
    tokens: int

    @classmethod
    def of(cls, one: CreditedRound) -> Link:
        return cls(one.version, one.digest, one.previous, one.milli_witnessed, one.tokens)


@dataclass(slots=True, eq=False)
class _Chain:
    """A commit, and the sums of the heaviest chain that ends with it."""

    link: Link
    weight: tuple[int, int] = (0, 0)
    before: _Chain | None = field(default=None, repr=False)
    is_counted: bool = False

    @property
    def rank(self) -> tuple[int, int, bytes]:
        return (*self.weight, self.link.digest)


def _standing(chain: _Chain) -> tuple[int, int, bytes]:
    return chain.link.milli_witnessed, chain.link.tokens, chain.link.digest


class Lineage:
    """All known commits of one fragment, and the chain of them that counts. Accepts commits one by one, in any order;
    `settle` takes one step for each version from the lowest changed one.
    """

    def __init__(self) -> None:
        self._links: dict[bytes, _Chain] = {}
        self._versions: list[int] = []
        """Ascending; `_at` and `_best` have the same order."""
        self._at: list[list[_Chain]] = []
        self._best: list[_Chain] = []
        """The heaviest chain that ends at or below each version."""
        self._counted: dict[int, _Chain] = {}
        self._changed_from: int | None = None

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._links

    def is_elsewhere(self, version: int, previous: bytes) -> bool:
        """Return whether commits of the version below `version` are known and none of them is `previous`."""
        place = bisect_left(self._versions, version - 1)
        if not previous or place == len(self._versions) or self._versions[place] != version - 1:
            return False
        return all(chain.link.digest[:DIGEST_BYTES] != previous for chain in self._at[place])

    def put(self, link: Link) -> bytes | None:
        """Add a commit, unless it is known.

        Returns:
            The digest of a dropped commit, if this version already had `MAX_FORKS` others. It may be the new commit.
        """
        if link.digest in self._links:
            return None
        place = bisect_left(self._versions, link.version)
        if place == len(self._versions) or self._versions[place] != link.version:
            self._versions.insert(place, link.version)
            self._at.insert(place, [])
            # A placeholder: `settle` weighs the version before any read.
            self._best.insert(place, _Chain(link))
        same = self._at[place]
        new = _Chain(link)
        least = min((*same, new), key=_standing) if len(same) >= MAX_FORKS else None
        if least is new:
            return link.digest
        same.append(new)
        self._links[link.digest] = new
        self._changed_from = min(link.version, link.version if self._changed_from is None else self._changed_from)
        if least is None:
            return None
        same.remove(least)
        del self._links[least.link.digest]
        return least.link.digest

    def settle(self) -> tuple[list[bytes], list[bytes]]:
        """Recompute the heaviest chain after the commits that were added since the last call.

        Returns:
            (digests of commits that count no longer, digests of commits that now count, by version).
        """
        changed_from, self._changed_from = self._changed_from, None
        if changed_from is None:
            return [], []
        for place in range(bisect_left(self._versions, changed_from), len(self._versions)):
            self._weigh(place)
        fresh: list[_Chain] = []
        at: _Chain | None = self._best[-1]
        while at is not None and not (at.is_counted and at.link.version < changed_from):
            fresh.append(at)
            at = at.before
        # Below this version nothing changed, so the counted chain is the same.
        above = bisect_right(self._versions, at.link.version) if at is not None else 0
        old = [self._counted.pop(version) for version in self._versions[above:] if version in self._counted]
        staying = set(map(id, fresh))
        dropped = [chain for chain in old if id(chain) not in staying]
        taken = [chain for chain in reversed(fresh) if not chain.is_counted]
        for chain in dropped:
            chain.is_counted = False
        for chain in fresh:
            chain.is_counted = True
            self._counted[chain.link.version] = chain
        return [chain.link.digest for chain in dropped], [chain.link.digest for chain in taken]

    def _weigh(self, place: int) -> None:
        version = self._versions[place]
        below = self._best[place - 1] if place else None
        is_next = below is not None and self._versions[place - 1] == version - 1
        parents = {chain.link.digest[:DIGEST_BYTES]: chain for chain in self._at[place - 1]} if is_next else {}
        for chain in self._at[place]:
            previous = chain.link.previous
            chain.before = parents.get(previous)
            if chain.before is None:
                # A commit of the version below that is not `previous` belongs to another chain.
                is_elsewhere = previous and is_next
                chain.before = (self._best[place - 2] if place > 1 else None) if is_elsewhere else below
            base = chain.before.weight if chain.before is not None else (0, 0)
            chain.weight = (base[0] + chain.link.milli_witnessed, base[1] + chain.link.tokens)
        heaviest = max(self._at[place], key=lambda chain: chain.rank)
        self._best[place] = heaviest if below is None else max(heaviest, below, key=lambda chain: chain.rank)
