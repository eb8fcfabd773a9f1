"""From signed commits to credit: whose tokens are in them, who witnessed that, and which of two histories counts. Pure.

A round averages one fragment, so a contribution of n tokens counts n times the share of the model's parameters that it
got in: one pass over all fragments counts each token once. It is *witnessed* when somebody else signed for it: the
reducer of a mean that it is in, who received it, or the leader, who took the offer and judged its tokens. It is only
*reported* when nobody but the contributor signed, as a peer that trains alone does.

Two commits of one version are a fork. Each names the commit before it, so commits form chains; the chain with more
witnessed tokens counts (then more tokens, then the greater digest), and nothing of the others. All of this depends on
which commits there are, and not on their order or on how often each came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from averaging.cell_messages import CellsCommit
from averaging.messages import DIGEST_BYTES, Commit
from averaging.wire import commit_digest_whole
from dht.host import PeerId


@dataclass(frozen=True, slots=True)
class MachineShare:
    """What one commit holds of one machine: credited thousandths of a token, 0 when nothing of it got in."""

    peer_id: PeerId
    milli_tokens: int
    is_witnessed: bool


@dataclass(frozen=True, slots=True)
class Round:
    """A commit as credit sees it; its signatures were checked by who made this.

    Attributes:
        digest: `wire.commit_digest_whole`.
        previous: first 16 bytes of the digest of the commit before; empty when its leader did not know it.
        tokens: of everybody in it, undivided.
        shares: of everyone in the roster.
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
        """Credited thousandths of tokens that others witnessed."""
        return sum(share.milli_tokens for share in self.shares if share.is_witnessed)


def round_of(commit: Commit, num_parameters: int) -> Round:
    """Whom a commit credits; `num_parameters` of the whole model."""
    num_values = [0] * len(commit.roster)
    witnessed = [False] * len(commit.roster)
    for index, result in enumerate(commit.results):
        reducer = commit.holder(index)
        for member in commit.members_in(index):
            peer_id = commit.roster[member].peer_id
            num_values[member] += result.end - result.start
            witnessed[member] |= not reducer == peer_id == commit.leader
    shares = tuple(
        MachineShare(entry.peer_id, round(1000 * entry.tokens * num_values[member] / num_parameters), witnessed[member])
        for member, entry in enumerate(commit.roster)
    )
    digest = commit_digest_whole(commit)
    leader, previous = commit.leader, commit.previous
    if isinstance(commit, CellsCommit):
        leader, previous = commit.upper.leader, commit.upper.previous
    return Round(commit.fragment, commit.version, digest, previous, leader, commit.tokens, shares)


def counted(rounds: Iterable[Round]) -> list[Round]:
    """Those that count: of every fragment one chain, by version.

    Where commits are missing, or a leader did not know the one before, a chain goes on from the heaviest below.
    """
    by_fragment: dict[int, dict[bytes, Round]] = {}
    for one in rounds:
        same = by_fragment.setdefault(one.fragment, {})
        same[one.digest] = _with_shares_of(same[one.digest], one) if one.digest in same else one
    return [one for fragment in sorted(by_fragment) for one in _heaviest_chain(by_fragment[fragment].values())]


def _with_shares_of(one: Round, other: Round) -> Round:
    """Two receipts of one commit: the same, or those of two cells of one round."""
    shares = {share.peer_id: share for share in (*one.shares, *other.shares)}
    return one if len(shares) == len(one.shares) else replace(one, shares=tuple(shares[key] for key in sorted(shares)))


def missing_versions(rounds: Iterable[Round]) -> dict[int, list[range]]:
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
    """Of all commits, whoever signed them: never less than `milli_witnessed`."""
    rounds: int = 0
    rounds_missed: int = 0
    """Rounds that planned with it and got nothing from it."""


def totals(rounds: Sequence[Round]) -> list[MachineTotal]:
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


@dataclass
class _Chain:
    """A commit, and the sums of the heaviest chain that ends with it."""

    round_: Round
    weight: tuple[int, int] = (0, 0)
    before: _Chain | None = field(default=None, repr=False)

    @property
    def rank(self) -> tuple[int, int, bytes]:
        return (*self.weight, self.round_.digest)


def _heaviest_chain(rounds: Iterable[Round]) -> list[Round]:
    by_version: dict[int, list[_Chain]] = {}
    for one in rounds:
        by_version.setdefault(one.version, []).append(_Chain(one))
    best: list[_Chain] = []  # the heaviest chain that ends at or below each version
    ends: list[int] = []
    for version in sorted(by_version):
        parents = {chain.round_.digest[:DIGEST_BYTES]: chain for chain in by_version.get(version - 1, ())}
        for chain in by_version[version]:
            chain.before = parents.get(chain.round_.previous)
            if chain.before is None and best:
                # A commit of the version just below that is not the one named is of another chain.
                is_elsewhere = chain.round_.previous and ends[-1] == version - 1
                below = best[:-1] if is_elsewhere else best
                chain.before = below[-1] if below else None
            base = chain.before.weight if chain.before is not None else (0, 0)
            chain.weight = (base[0] + chain.round_.milli_witnessed, base[1] + chain.round_.tokens)
        heaviest = max(by_version[version], key=lambda chain: chain.rank)
        best.append(max((heaviest, *best[-1:]), key=lambda chain: chain.rank))
        ends.append(version)
    found: list[Round] = []
    at: _Chain | None = best[-1] if best else None
    while at is not None:
        found.append(at.round_)
        at = at.before
    return found[::-1]
