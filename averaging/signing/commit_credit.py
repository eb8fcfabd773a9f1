"""From signed commits to credit: whose tokens are in them, who witnessed that, and which of two histories counts. Pure.

A round averages one fragment, so a contribution of n tokens counts n times the share of the model's parameters that it
got in. So one pass over all fragments counts each token once. It is *witnessed* when somebody else signed for it. That
is the reducer of a mean that it is in, or the leader, which took the offer and judged its tokens. It is only *reported*
when nobody but the contributor signed, as a peer that trains alone does.

Two commits of one version are a fork. Each names the commit before it, so commits form chains. The chain with more
witnessed tokens counts (then more tokens, then the greater digest), and nothing of the others. All of this depends on
which commits there are, and not on their order or on how often each came.

This is the only rule: `counted` applies it to a whole file, `Lineage` to one commit after the other, with the same
result. Credit is whole thousandths of a token throughout, so that sums are exact. Nothing overflows: one share
saturates at `MAX_SHARE_MILLI`, sums are Python's whole numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from averaging.wire.frames import commit_digest_whole
from averaging.wire.messages import DIGEST_BYTES, Commit
from dht.ground.host import PeerId

MAX_SHARE_MILLI: Final = 2**50
"""The most thousandths of a token that one commit credits one machine with: 10^12 tokens, a year of a large cluster.
A machine that claims more gets this, so that sums over any history that can be stored fit 64 bits."""
MAX_TOKENS: Final = 2**62
"""The most tokens that a commit weighs in a fork."""
MAX_FORKS: Final = 8
"""Commits of one version that are looked at, those with the most tokens: forks have two or three sides, a flood any
number."""


class MachineShare(NamedTuple):
    """What one commit holds of one machine: credited thousandths of a token, 0 when nothing of it got in.

    A tuple: a dashboard's start reads millions of them.
    """

    peer_id: PeerId
    milli_tokens: int
    is_witnessed: bool

    @property
    def milli_witnessed(self) -> int:
        return self.milli_tokens if self.is_witnessed else 0

    @property
    def worth(self) -> tuple[int, int, bool]:
        """What decides between two receipts of one commit about one machine, in whatever order they come."""
        return self.milli_witnessed, self.milli_tokens, self.is_witnessed


@dataclass(frozen=True, slots=True)
class CreditedRound:
    """A commit as credit sees it; its signatures were checked by who made this.

    Attributes:
        digest: `averaging.wire.frames.commit_digest_whole`.
        previous: first 16 bytes of the digest of the commit before; empty when its leader did not know it.
        tokens: of everybody in it, as averaged into this fragment (`Commit.tokens`).
        shares: of everyone in the roster.
        standing: which of too many commits of one version are looked at: thousandths of tokens that are witnessed.
    """

    fragment: int
    version: int
    digest: bytes
    previous: bytes
    leader: PeerId
    tokens: int
    shares: tuple[MachineShare, ...]
    standing: int

    @property
    def milli_witnessed(self) -> int:
        """Credited thousandths of tokens that others witnessed."""
        return sum(share.milli_witnessed for share in self.shares)


def round_of(commit: Commit, num_parameters: int) -> CreditedRound:
    """The members that a commit credits; `num_parameters` of the whole model."""
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
    standing = sum(share.milli_witnessed for share in shares)
    return CreditedRound(
        commit.fragment, commit.version, digest, commit.previous, commit.leader, tokens, shares, standing
    )


def milli(tokens: int, num_values: int, num_parameters: int) -> int:
    """Thousandths of tokens that were averaged into so many of a model's parameters; exact, halves to even."""
    quotient, rest = divmod(1000 * tokens * num_values, num_parameters)
    is_up = 2 * rest > num_parameters or (2 * rest == num_parameters and quotient % 2)
    return min(quotient + is_up, MAX_SHARE_MILLI)


def counted(rounds: Iterable[CreditedRound]) -> list[CreditedRound]:
    """Those that count: of every fragment one chain, by version.

    Where commits are missing, or a leader did not know the one before, a chain goes on from the heaviest below.
    """
    known: dict[int, dict[bytes, CreditedRound]] = {}
    lineages: dict[int, Lineage] = {}
    for one in rounds:
        same = known.setdefault(one.fragment, {})
        merged = same[one.digest] = with_shares_of(same[one.digest], one) if one.digest in same else one
        lineages.setdefault(one.fragment, Lineage()).put(Link.of(merged))
    return [
        known[fragment][digest] for fragment, lineage in sorted(lineages.items()) for digest in lineage.settle().taken
    ]


def with_shares_of(one: CreditedRound, other: CreditedRound) -> CreditedRound:
    """Join two receipts of one commit; a machine that is in both counts once."""
    shares: dict[PeerId, MachineShare] = {}
    for share in (*one.shares, *other.shares):
        held = shares.setdefault(share.peer_id, share)
        shares[share.peer_id] = max(held, share, key=attrgetter("worth"))
    return replace(one, shares=tuple(shares[key] for key in sorted(shares)))


def missing_versions(rounds: Iterable[CreditedRound]) -> dict[int, list[range]]:
    """Per fragment: versions between the oldest and the newest known commit of which none is known."""
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
    """One machine's credit; tokens as in `MachineShare`."""

    peer_id: PeerId
    milli_witnessed: int = 0
    milli_reported: int = 0
    """Of all commits, with or without a witness: never less than `milli_witnessed`."""
    rounds: int = 0
    rounds_missed: int = 0
    """Rounds that planned with it and got nothing from it."""


def totals(rounds: Sequence[CreditedRound]) -> list[MachineTotal]:
    """Every machine in these rounds, those with the most witnessed tokens first; apply `counted` before."""
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
    """What a lineage needs of a commit; attributes as in `CreditedRound`."""

    version: int
    digest: bytes
    previous: bytes
    milli_witnessed: int
    tokens: int
    standing: int

    @classmethod
    def of(cls, one: CreditedRound) -> Link:
        return cls(one.version, one.digest, one.previous, one.milli_witnessed, one.tokens, one.standing)


@dataclass(frozen=True, slots=True)
class Settlement:
    """What changed: digests of commits that count no longer, and of those that do now, by version."""

    dropped: list[bytes] = field(default_factory=list)
    taken: list[bytes] = field(default_factory=list)


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
    return chain.link.standing, chain.link.tokens, chain.link.digest


class Lineage:
    """All known commits of one fragment, and the chain of them that counts. Grows by one commit at a time, in any
    order; `settle` costs as many steps as there are versions from the lowest that changed."""

    def __init__(self) -> None:
        self._links: dict[bytes, _Chain] = {}
        self._versions: list[int] = []
        """Ascending; `_at` and `_best` are in the same order."""
        self._at: list[list[_Chain]] = []
        self._best: list[_Chain] = []
        """The heaviest chain that ends at or below each version."""
        self._counted: dict[int, _Chain] = {}
        self._changed_from: int | None = None

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._links

    def is_elsewhere(self, version: int, previous: bytes) -> bool:
        """Whether commits just below `version` are known and none of them is the `previous` one."""
        place = bisect_left(self._versions, version - 1)
        if not previous or place == len(self._versions) or self._versions[place] != version - 1:
            return False
        return all(chain.link.digest[:DIGEST_BYTES] != previous for chain in self._at[place])

    def put(self, link: Link) -> bytes | None:
        """Take in a commit, or more of one that is known (another receipt of it may be heavier).

        Returns:
            The digest that is let go: with `MAX_FORKS` others of this version there is no room for it. It may be the
            new one.
        """
        held = self._links.get(link.digest)
        if held is not None:
            if held.link != link:
                held.link = link
                self._change(link.version)
            return None
        place = bisect_left(self._versions, link.version)
        if place == len(self._versions) or self._versions[place] != link.version:
            self._versions.insert(place, link.version)
            self._at.insert(place, [])
            # Nobody reads it before it is weighed.
            self._best.insert(place, _Chain(link))
        same = self._at[place]
        new = _Chain(link)
        least = min((*same, new), key=_standing) if len(same) >= MAX_FORKS else None
        if least is new:
            return link.digest
        same.append(new)
        self._links[link.digest] = new
        self._change(link.version)
        if least is None:
            return None
        same.remove(least)
        del self._links[least.link.digest]
        return least.link.digest

    def settle(self) -> Settlement:
        """Follow the heaviest chain again, after whatever was put in since the last time."""
        changed_from, self._changed_from = self._changed_from, None
        if changed_from is None:
            return Settlement()
        for place in range(bisect_left(self._versions, changed_from), len(self._versions)):
            self._weigh(place)
        fresh: list[_Chain] = []
        at: _Chain | None = self._best[-1]
        while at is not None and not (at.is_counted and at.link.version < changed_from):
            fresh.append(at)
            at = at.before
        # From here down nothing changed, so the chain there is the one that was counted.
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
        return Settlement([chain.link.digest for chain in dropped], [chain.link.digest for chain in taken])

    def _change(self, version: int) -> None:
        self._changed_from = version if self._changed_from is None else min(version, self._changed_from)

    def _weigh(self, place: int) -> None:
        version = self._versions[place]
        below = self._best[place - 1] if place else None
        is_next = below is not None and self._versions[place - 1] == version - 1
        parents = {chain.link.digest[:DIGEST_BYTES]: chain for chain in self._at[place - 1]} if is_next else {}
        for chain in self._at[place]:
            previous = chain.link.previous
            chain.before = parents.get(previous)
            if chain.before is None:
                # A commit of the version just below that is not the one named is of another chain.
                is_elsewhere = previous and is_next
                chain.before = (self._best[place - 2] if place > 1 else None) if is_elsewhere else below
            base = chain.before.weight if chain.before is not None else (0, 0)
            chain.weight = (base[0] + chain.link.milli_witnessed, base[1] + chain.link.tokens)
        heaviest = max(self._at[place], key=lambda chain: chain.rank)
        self._best[place] = heaviest if below is None else max(heaviest, below, key=lambda chain: chain.rank)
