"""Facts about downloads of anchors and files, and about replaced anchors."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.rounds.round_facts import Fact, OfVersion, bare
from dht.ground.host import PeerId
from dht.ground.quantities import bit_rate_text, bytes_text, plural, seconds_text, share_text, short_peer


@dataclass(frozen=True, slots=True)
class Fetched(Fact):
    """This peer downloaded anchors (`fragments`) or files of the run (`names`), and checked their digests.

    `donors` lists the members that sent data, sorted by the number of bytes that each sent. If both `fragments` and
    `names` are empty, the download is still in progress, and `num_bytes` of `total_bytes` have arrived. A peer reports
    its progress about once per second.
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
        """The share of `total_bytes` that has arrived, from 0 to 1."""
        return min(1.0, self.num_bytes / max(1, self.total_bytes))

    @property
    def bits_per_second(self) -> float:
        return 8 * self.num_bytes / max(self.seconds, 1e-3)

    @property
    def seconds_left(self) -> float:
        """Seconds until the download ends, at the average rate so far."""
        return 8 * max(0, self.total_bytes - self.num_bytes) / max(self.bits_per_second, 1e-3)

    @property
    def time_left(self) -> str:
        """`seconds_left` as text, in whole seconds."""
        return "less than 1 s" if self.seconds_left < 1 else seconds_text(self.seconds_left)

    def sentence(self) -> str:
        if not self.is_done:
            return (
                f"Catching up: {share_text(self.share)} of {bytes_text(self.total_bytes)} at "
                f"{bit_rate_text(self.bits_per_second)}, {self.time_left} left."
            )
        donors = ", ".join(short_peer(donor) for donor in self.donors) or "data on this machine"
        size = f"{bytes_text(self.num_bytes)} in {seconds_text(self.seconds)}"
        if self.names:
            return (
                f"Fetched {plural(len(self.names), 'file')} of the run ({', '.join(self.names)}) from {donors}: {size}."
            )
        return f"Caught up with {plural(len(self.fragments), 'part')} of the model from {donors}: {size}."


@dataclass(frozen=True, slots=True)
class AnchorRepair(OfVersion):
    """This peer's anchor differs from the swarm's anchor, or (`is_done`) this peer has replaced its anchor.

    This peer keeps its unsent work. `num_others` is the number of members whose anchor has a different history, and
    `reason` explains the replacement.
    """

    is_done: bool
    reason: str = ""
    num_others: int = 0

    def sentence(self) -> str:
        if self.is_done:
            return f"Replaced the anchor of fragment {self.fragment}, now version {self.version}: {bare(self.reason)}."
        return (
            f"The anchor of fragment {self.fragment} at version {self.version} differs from the anchor "
            f"of {plural(self.num_others, 'member')}: this peer downloads theirs and keeps its unsent work."
        )
