"""The rule that decides which anchor counts, for repairs, forks, donors, newcomers and views. Pure.

A member's claims about its anchor (version, digest, tokens) decide nothing alone. The number of known, live members
with an anchor counts, and the tokens in signed commits that lead to it. So among n known members

- an anchor that more than half of them have counts (`is_majority`);
- an anchor whose signed commits begin at a common anchor of both sides counts if these commits contain more tokens than
  this peer's own since then. The other members must not be more than twice as many, and one member never counts against
  two. The others are this peer's side or a larger third side: if each member is alone, tokens decide, so that this fork
  ends too. If these commits begin at this peer's present anchor, and this peer would follow each of them, they lead to
  a later state of its own lineage: members that still have the present anchor then do not count against it;
- a commit does not contain the anchor that it leads to: if another member claims a different anchor after a commit that
  this peer has applied, that anchor counts only if more than half of the members have it, whatever commits follow;
- an impossibly high version counts only if more than half of the members have it;
- without a common anchor, signed commits decide only between sides with equally many members;
- all other anchors do not count, even if uncontested.

Members are counted by identities, which cost nothing: docs/contributor/security.md describes the effect of a flood.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

MAX_LINEAGE_TOKENS = 2**60
"""Fits 64 bits with room for sums over fragments. At this number, all peers stop counting a lineage's tokens."""
MAX_CLAIMED_VERSION = 2**40
"""Highest version of an anchor that only a minority, or a single member, claims: a round per millisecond for 30 years.
A peer that is alone with a liar may adopt this version, and count up from there."""
MAX_ANCHOR_VERSION = 2**50
"""Highest version of a fetched anchor: no honest peer refuses a version that others have counted to. Records and
messages carry versions up to `MAX_VERSION`."""
MAX_VERSION = 2**53
"""Highest version in records and messages: rounds count up to it from any fetched anchor."""


@dataclass(frozen=True, slots=True)
class Side:
    """Members that share one anchor of a fragment.

    Attributes:
        digest: digest of the anchor, or its first bytes.
        num_members: number of members with the anchor.
        lineage_tokens: tokens in signed commits if those are compared; otherwise the announced tokens, which decide
            only between sides with equally many members.
        version: version of the anchor; 0 if all sides have the same version.
    """

    digest: bytes
    lineage_tokens: int
    num_members: int
    version: int = 0


def heaviest_side(sides: Iterable[Side]) -> Side:
    """Return the heaviest side in a view without known commits: by members, then claimed tokens, then digest."""
    return max(sides, key=lambda side: (side.num_members, side.lineage_tokens, side.digest))


def is_majority(num_members: int, num_known: int) -> bool:
    """Return whether `num_members` are more than half of the known members."""
    return 2 * num_members > num_known


def outnumbers(one: Side, other: Side) -> bool:
    """Return whether `one` counts whatever commits `other` has: more than twice as many members, or at least two
    against one.
    """
    return (one.num_members >= 2 > other.num_members) or one.num_members > 2 * other.num_members


def replaces(own: Side, other: Side, num_known: int, *, are_comparable: bool, num_elsewhere: int = 0) -> bool:
    """Return whether a peer with the anchor of `own` adopts that of `other`.

    Both sides get the same result, whichever of them compares. The two largest sides always decide.

    Args:
        own, other: their `lineage_tokens` are those in signed commits: since the newest common anchor if
            `are_comparable`, otherwise in all stored commits.
        num_known: number of known members, including this peer.
        are_comparable: whether both chains of signed commits begin at one anchor.
        num_elsewhere: members on the largest third side.
    """
    if other.version > MAX_CLAIMED_VERSION and not is_majority(other.num_members, num_known):
        return False
    if are_comparable:
        own = replace(own, num_members=max(own.num_members, num_elsewhere))
        if outnumbers(own, other):
            return False
        return outnumbers(other, own) or (other.lineage_tokens, other.digest) > (own.lineage_tokens, own.digest)
    if is_majority(other.num_members, num_known):
        return True
    if is_majority(own.num_members, num_known) or not other.lineage_tokens:
        return False
    return _signed_weight(other) > _signed_weight(own)


def _signed_weight(side: Side) -> tuple[int, int, int, bytes]:
    return (side.num_members, side.lineage_tokens, side.version, side.digest)
