"""In which cell a peer is, and who is in the others, as that peer sees it. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from averaging.cells import formation
from averaging.wire.messages import Commit
from dht.host import PeerId


@dataclass
class Seat:
    """A peer's place among the cells.

    Attributes:
        place: the version that is the current one, and the commit that led there; None when it is not known.
        rank: peers, or cells, in the order in which they lead a round of the current version.
        everyone: the live trainers of all cells, in order.
        num_everyone: how many there are with those that do not answer now.
    """

    me: PeerId
    rule: formation.CellRule
    place: Callable[[], tuple[int, Commit | None]]
    rank: Callable[[Iterable[PeerId]], list[PeerId]]
    everyone: tuple[PeerId, ...] = ()
    num_everyone: int = 0
    _known: tuple[int, int] = (-1, 0)
    _hint: tuple[int, int] = (-1, 0)

    def see(self, everyone: tuple[PeerId, ...], num_everyone: int) -> None:
        self.everyone, self.num_everyone = everyone, num_everyone

    @property
    def has_cells(self) -> bool:
        """Whether rounds of the current version are on two levels."""
        return self.rule.site_of is not None or self._depth() > 0

    def cells(self) -> Mapping[str, tuple[PeerId, ...]]:
        """Cell -> the trainers in it that this peer sees."""
        if not self.has_cells:
            return {"": self.everyone} if self.everyone else {}
        if self.rule.site_of is None:
            return formation.hash_cells(self.everyone, self._depth())
        return formation.members_of_cells(self.everyone, map(self.name_of, self.everyone))

    def expected(self) -> frozenset[str]:
        """The cells of this round: those seen, and of the round before those that are still cells.

        This peer may not know members of all of them.
        """
        _, before = self.place()
        rows = before.cells if before is not None and self.rule.site_of is None else ()
        depth = self._depth() if rows else 0
        return frozenset(self.cells()) | {row.name for row in rows if formation.depth_of(row.name) == depth}

    def name_of(self, peer_id: PeerId, depth: int | None = None) -> str:
        """The cell of a peer; among 2^depth, when that is given."""
        if self.rule.site_of is not None:
            return formation.site_cell(self.rule.site_of(peer_id))
        return formation.hash_cell(peer_id, self._depth() if depth is None else depth)

    def name_in(self, commit: Commit) -> str:
        """This peer's cell, as the round of a commit had cells."""
        return self.name_of(self.me, formation.depth_of(commit.cells[0].name))

    def leaders_of(self, cell: str, *others: PeerId) -> list[PeerId]:
        """The leaders of a cell in which these `others` are, too; the best first."""
        return self.rank({*self.cells().get(cell, ()), *others})

    def first_of_others(self, cells: Collection[str]) -> set[PeerId]:
        """Of each cell that is not among `cells` the member who, as far as is known here, leads it."""
        return {self.rank(members)[0] for name, members in self.cells().items() if name not in cells}

    def tops(self, given_up: Collection[PeerId]) -> list[PeerId]:
        """Candidates to lead above, the best first: the leaders of the first cell in rank, then those of the next.

        So it takes the members of one other cell to know the top leader, and not all of the swarm.
        """
        cells = dict(self.cells())
        own = self.name_of(self.me)
        cells[own] = (*cells.get(own, ()), self.me)
        for cell in self.rank(map(PeerId, cells)):
            candidates = set(cells[PeerId(cell)]) - set(given_up)
            if candidates:
                return self.rank(candidates)
        return [self.me]

    @property
    def is_guessed(self) -> bool:
        """Whether a restarted process does not know the commit before, and with it in how many cells the round is."""
        version, before = self.place()
        is_known = before is not None or self._hint[0] == version
        return self.rule.site_of is None and version > 0 and not is_known

    def learn(self, commit: Commit) -> bool:
        """A commit came; returns whether it is the one before the current version, and was missed for that."""
        version, _ = self.place()
        if commit.version != version - 1 or not self.is_guessed:
            return False
        self._hint = (version, formation.depth_after(commit, self.rule.cell_size))
        return True

    def _depth(self) -> int:
        version, before = self.place()
        if before is not None:
            if self._known[0] != version:
                self._known = (version, formation.depth_after(before, self.rule.cell_size))
            return self._known[1]
        if self._hint[0] == version:
            return self._hint[1]
        place = bisect_left(self.everyone, self.me)
        is_among = self.everyone[place : place + 1] == (self.me,)
        return formation.depth_for(len(self.everyone) + (not is_among), 0, self.rule.cell_size)
