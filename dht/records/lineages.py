"""Which anchor counts: the one rule for repairs, forks, donors, newcomers and views. Pure.

A member's words about its own anchor (version, digest, tokens) decide nothing by themselves. What counts is how many
known, live members have an anchor, and the tokens in signed commits that lead to it. So among n known members

- an anchor that more than half of them have counts (`is_majority`);
- one whose signed commits begin at an anchor that both sides had counts when these commits hold more tokens than this
  peer's own since. The others must not be more than twice as many, and one member never counts against two. The others
  are this peer's side or a larger third one: where each member is alone, tokens decide, and such a fork ends, too;
- a version that nobody can have counted up to counts only where more than half of them have it;
- without a common anchor, signed commits decide only between sides of equally many members;
- anything else does not count, though nobody contradicts it.

Numbers of members are identities, which cost nothing: docs/contributor/security.md says what a flood of them can do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

MAX_LINEAGE_TOKENS = 2**60
"""Fits 64 bits with room for sums over fragments. A lineage that gets there counts no further, at every peer alike."""
MAX_CLAIMED_VERSION = 2**40
"""Of an anchor that only the fewer, or a single member, claim: a round per millisecond for 30 years. A peer that is
alone with a liar may take one over, and count up from there."""
MAX_ANCHOR_VERSION = 2**50
"""Of an anchor that is fetched: no honest peer refuses what others have counted. Records and messages carry versions up
to `MAX_VERSION`."""
MAX_VERSION = 2**53
"""In records and messages: rounds count up to there from any anchor that was fetched."""


@dataclass(frozen=True, slots=True)
class Side:
    """Members that share one anchor of a fragment.

    Attributes:
        digest: of the anchor, or its first bytes.
        num_members: that have it.
        lineage_tokens: where signed commits are compared those in them, else what members announce, which then decides
            only between sides of equally many members.
        version: of the anchor; 0 where all sides are at one version.
    """

    digest: bytes
    lineage_tokens: int
    num_members: int
    version: int = 0


def heaviest_side(sides: Iterable[Side]) -> Side:
    """Of the sides in a view, where commits are not known: by members, then tokens, which are claims, then digest."""
    return max(sides, key=lambda side: (side.num_members, side.lineage_tokens, side.digest))


def is_majority(num_members: int, num_known: int) -> bool:
    """Whether so many of the known members are more than half of them."""
    return 2 * num_members > num_known


def outnumbers(one: Side, other: Side) -> bool:
    """Whether `one` counts whatever is signed for `other`: twice as many and more, or two against a single one."""
    return (one.num_members >= 2 > other.num_members) or one.num_members > 2 * other.num_members


def replaces(own: Side, other: Side, num_known: int, *, are_comparable: bool, num_elsewhere: int = 0) -> bool:
    """Whether a peer with the anchor of `own` takes over that of `other`.

    Both sides find the same, whichever of them compares. The two largest sides always decide.

    Args:
        own, other: `lineage_tokens` are those in signed commits: since the newest common anchor when `are_comparable`,
            else in all that are kept.
        num_known: members that are known, this peer among them.
        are_comparable: both chains of signed commits begin at one anchor.
        num_elsewhere: members on the largest side that is neither.
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
