"""How this peer comes by anchors: fetched on joining, found to differ from those of others, put right; as facts."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.rounds.round_facts import Fact, OfVersion, bare
from dht.ground.host import PeerId
from dht.ground.quantities import bit_rate_text, bytes_text, plural, seconds_text, share_text, short_peer


@dataclass(frozen=True, slots=True)
class Fetched(Fact):
    """Anchors (`fragments`) or files of the run (`names`) were downloaded in `seconds`, and their digests checked.

    `donors` sent them, those who sent most first. Neither fragments nor names: so much of `total_bytes` of the anchors
    is here by now; about once a second.
    """

    num_bytes: int
    seconds: float
    donors: tuple[PeerId, ...] = ()
    fragments: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    total_bytes: int = 0

    @property
    def is_done(self) -> bool:
        return bool(self.fragments or self.names)

    @property
    def share(self) -> float:
        """What has arrived, 0 to 1."""
        return min(1.0, self.num_bytes / max(1, self.total_bytes))

    @property
    def bits_per_second(self) -> float:
        return 8 * self.num_bytes / max(self.seconds, 1e-3)

    @property
    def seconds_left(self) -> float:
        """At the rate so far."""
        return 8 * max(0, self.total_bytes - self.num_bytes) / max(self.bits_per_second, 1e-3)

    @property
    def time_left(self) -> str:
        """`seconds_left` for people; a rate that was just measured says nothing about parts of a second."""
        return "less than 1 s" if self.seconds_left < 1 else seconds_text(self.seconds_left)

    def sentence(self) -> str:
        if not self.is_done:
            return (
                f"Catching up: {share_text(self.share)} of {bytes_text(self.total_bytes)} at "
                f"{bit_rate_text(self.bits_per_second)}, {self.time_left} left."
            )
        donors = ", ".join(short_peer(donor) for donor in self.donors) or "what was here"
        size = f"{bytes_text(self.num_bytes)} in {seconds_text(self.seconds)}"
        if self.names:
            return (
                f"Fetched {plural(len(self.names), 'file')} of the run ({', '.join(self.names)}) from {donors}: {size}."
            )
        return f"Caught up with {plural(len(self.fragments), 'part')} of the model from {donors}: {size}."


@dataclass(frozen=True, slots=True)
class AnchorRepair(OfVersion):
    """This peer's anchor is not the one that counts, or (`is_done`) was replaced by that one; unsent work is kept.

    `num_others` members have another lineage; `reason` says why the anchor was replaced.
    """

    is_done: bool
    reason: str = ""
    num_others: int = 0

    def sentence(self) -> str:
        if self.is_done:
            return f"Replaced the anchor of fragment {self.fragment}, now version {self.version}: {bare(self.reason)}."
        return (
            f"The anchor of fragment {self.fragment} at version {self.version} differs from that of "
            f"{plural(self.num_others, 'member')}: theirs is fetched, unsent work is kept."
        )
