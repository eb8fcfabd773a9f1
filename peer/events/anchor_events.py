"""How this peer comes by anchors: fetched on joining, found to differ from those of others, put right; as facts."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.rounds.round_facts import Fact, OfVersion, bare
from dht.ground.host import PeerId
from dht.ground.quantities import bit_rate_text, bytes_text, plural, seconds_text, share_text, short_peer


@dataclass(frozen=True, slots=True)
class CatchUpProgressed(Fact):
    """So much of the anchors has been downloaded; about once a second. `seconds_left` at the present rate."""

    done_bytes: int
    total_bytes: int
    bits_per_second: float
    seconds_left: float

    @property
    def share(self) -> float:
        """What has arrived, 0 to 1."""
        return min(1.0, self.done_bytes / max(1, self.total_bytes))

    @property
    def time_left(self) -> str:
        """`seconds_left` for people; a rate that was just measured says nothing of parts of a second."""
        return "less than 1 s" if self.seconds_left < 1 else seconds_text(self.seconds_left)

    def sentence(self) -> str:
        return (
            f"Catching up: {share_text(self.share)} of {bytes_text(self.total_bytes)} at "
            f"{bit_rate_text(self.bits_per_second)}, {self.time_left} left."
        )


@dataclass(frozen=True, slots=True)
class CaughtUp(Fact):
    """Anchors and momentum of `fragments` were downloaded and their digests checked.

    `donors` sent them, those who sent most first; `donor` is the first of them.
    """

    fragments: tuple[int, ...]
    donor: PeerId
    num_bytes: int
    seconds: float
    donors: tuple[PeerId, ...] = ()

    def sentence(self) -> str:
        names = ", ".join(short_peer(donor) for donor in self.donors or (self.donor,))
        parts = f"{plural(len(self.fragments), 'part')} of the model from {names}"
        return f"Caught up with {parts}: {bytes_text(self.num_bytes)} in {seconds_text(self.seconds)}."


@dataclass(frozen=True, slots=True)
class AnchorDiffered(OfVersion):
    """This peer's anchor is not the one that most weight stands behind: `num_others` members have another lineage."""

    num_others: int

    def sentence(self) -> str:
        return (
            f"The anchor of fragment {self.fragment} at version {self.version} differs from that of "
            f"{plural(self.num_others, 'member')}: theirs is fetched, unsent work is kept."
        )


@dataclass(frozen=True, slots=True)
class AnchorRepaired(OfVersion):
    """This peer's anchor differed from the swarm's and was replaced; unsent work is kept."""

    reason: str

    def sentence(self) -> str:
        return f"Replaced the anchor of fragment {self.fragment}, now version {self.version}: {bare(self.reason)}."
