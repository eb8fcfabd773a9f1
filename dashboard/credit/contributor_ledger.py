"""`Ledger`: credit of each contributor, computed from checked commits in any order. Pure.

Credit is counted in whole thousandths of a token, so that sums are exact. Two dashboards of one run with the same
commits, in any order, show the same totals as `peer receipts verify`. `averaging.signing.commit_credit` decides through
`Counting` which commits count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from averaging.signing.commit_credit import MachineShare
from dashboard.credit.credited_members import CommitCredit
from dashboard.credit.heaviest_commit_chains import Booking, Counting, Outcome, StoredReceipt
from dashboard.credit.work_log import WorkLog
from dashboard.history_facts import (
    ContributorRow,
    DayOfWork,
    MachineRow,
    TrafficTotals,
)
from dashboard.observe.listed_peers import PeerRow
from dht.records.profiles import Profile

MAX_MACHINES: Final = 50_000
"""Rows of credited machines. Beyond this, new keys are counted but not listed: two keys can sign for each other, and no
listed machine loses its row."""
MAX_UNWITNESSED_ROWS: Final = 100
"""Rows of machines before the first commit, in order of arrival: a lone trainer is shown, a flood is not."""
MAX_GAP_SECONDS: Final = 30.0
"""Longest time between two observations that counts as uptime; hanging or sleeping does not."""

SECONDS_PER_DAY: Final = 86_400


@dataclass(slots=True)
class MachineTotals:
    """Totals of one PeerId."""

    peer_id: str
    contributor_key: str = ""
    """The contributor in its record. The history's file stores this field and the next ones."""
    device: str = ""
    name: str = ""
    """Name in its record; its contributor's profile takes precedence."""
    first_at: float = math.inf
    last_at: float = 0.0
    uptime_seconds: float = 0.0
    milli_tokens_witnessed: int = 0
    milli_tokens_reported: int = 0
    rounds: int = 0
    rounds_missed: int = 0
    days: Counter[int] = field(default_factory=Counter)
    """Rounds by day since 1970 (UTC)."""
    work: Counter[int] = field(default_factory=Counter)
    """Thousandths of tokens that others witnessed, by day."""
    log: WorkLog = field(default_factory=WorkLog)

    def credit(self, share: MachineShare, receipt: StoredReceipt, sign: int) -> None:
        """Add a share of a round that counts (`sign` 1), or remove it (-1)."""
        at = receipt.at
        self.log.book(receipt, share, sign)
        self.milli_tokens_witnessed += sign * share.milli_witnessed
        self.milli_tokens_reported += sign * share.milli_tokens
        if share.milli_tokens:
            self.rounds += sign
            day = int(at // SECONDS_PER_DAY)
            self.days[day] += sign
            self.work[day] += sign * share.milli_witnessed
        else:
            self.rounds_missed += sign
        self.first_at, self.last_at = min(self.first_at, at), max(self.last_at, at)

    def meet(self, row: PeerRow, seconds: float = 0.0) -> bool:
        """Update from the machine's record, after `seconds` of presence. Return whether anything changed."""
        before = (self.device, self.name, self.contributor_key, self.last_at, self.uptime_seconds)
        self.device, self.name, self.contributor_key = row.record.device, row.record.name, row.contributor_id
        self.first_at = min(self.first_at, row.first_heard_at)
        self.last_at = max(self.last_at, row.heard_at)
        self.uptime_seconds += seconds
        return before != (self.device, self.name, self.contributor_key, self.last_at, self.uptime_seconds)

    def forget_name(self) -> None:
        """Remove the name, which its owner has withdrawn."""
        self.name = ""


@dataclass
class Ledger:
    """Machines by PeerId, profiles by contributor, and which rounds are counted."""

    machines: dict[str, MachineTotals] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    counting: Counting = field(default_factory=Counting)
    present: dict[str, PeerRow] = field(default_factory=dict)
    """Machines in the newest observation."""
    payload_bytes: int = 0
    data_parallel_bytes: int = 0
    """Both for all counted rounds."""
    num_unlisted: int = 0
    """Credits without a free row."""
    _looked_at: float = 0.0

    def put(self, credit: CommitCredit, seen_at: float, num: int = 0) -> Outcome:
        """Add a checked commit; `settle` books the changes. `num`: its number in the file."""
        return self.counting.put(credit, seen_at, num)

    def settle(self) -> list[Booking]:
        """Book the changes since the last call."""
        bookings = self.counting.settle()
        for booking in bookings:
            self._book(booking)
        return bookings

    def num_versions(self, fragment: int) -> int:
        """Return the highest version with a known commit, plus one; 0: none is known."""
        return max(self.counting.versions.get(fragment, ()), default=-1) + 1

    def absent(self, fragment: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of versions below `end` without a known commit: (begin, end exclusive), ascending."""
        known = sorted(version for version in self.counting.versions.get(fragment, ()) if version < end)
        return [(low + 1, high) for low, high in pairwise([-1, *known, end]) if high > low + 1]

    @property
    def num_rounds(self) -> int:
        """Number of commits that count."""
        return self.counting.num_rounds

    def add_profile(self, profile: Profile) -> bool:
        """Add a profile if it is newer than the stored one, and return whether it is."""
        held = self.profiles.get(profile.contributor_id)
        if held is not None and (held.sequence, held.issued_at) >= (profile.sequence, profile.issued_at):
            return False
        self.profiles[profile.contributor_id] = profile
        return True

    def look(self, present: Iterable[PeerRow], now: float) -> list[MachineTotals]:
        """Update from the machines' records. Return the credited machines that changed."""
        seconds = now - self._looked_at
        self._looked_at = now
        self.present = {row.record.peer_id: row for row in present}
        changed = []
        for peer_id, row in self.present.items():
            machine = self.machines.get(peer_id)
            if machine is None:
                continue
            is_here = row.condition == "here"
            is_changed = machine.meet(row, seconds if is_here and 0 < seconds <= MAX_GAP_SECONDS else 0.0)
            if is_here or is_changed:
                changed.append(machine)
        return changed

    def contributor_of(self, peer_id: str) -> str:
        """Return this machine's contributor if both name each other, otherwise the machine itself."""
        row, machine = self.present.get(peer_id), self.machines.get(peer_id)
        key = row.contributor_id if row is not None else machine.contributor_key if machine else ""
        profile = self.profiles.get(key)
        return key if profile is not None and peer_id in profile.machines else peer_id

    def rows(self) -> tuple[tuple[ContributorRow, ...], int]:
        """Return (contributors by witnessed tokens, number of peers without a row)."""
        # A machine whose only commit lost to heavier ones is not listed.
        listed = {
            key: one
            for key, one in self.machines.items()
            if one.milli_tokens_reported or one.rounds or one.rounds_missed
        }
        others = [row for peer_id, row in self.present.items() if peer_id not in listed and row.condition == "here"]
        others.sort(key=lambda row: (row.first_heard_at, row.record.peer_id))
        # Once there is signed work, a record alone does not make a contributor.
        num_free = 0 if listed else MAX_UNWITNESSED_ROWS
        for row in others[:num_free]:
            machine = listed[row.record.peer_id] = MachineTotals(row.record.peer_id)
            machine.meet(row)
        groups: dict[str, list[MachineTotals]] = {}
        for machine in listed.values():
            groups.setdefault(self.contributor_of(machine.peer_id), []).append(machine)
        total = sum(machine.milli_tokens_witnessed for machine in self.machines.values())
        ranked = sorted(groups.items(), key=lambda group: _rank_key(*group))
        rows = tuple(self._row(key, machines, total, place) for place, (key, machines) in enumerate(ranked, 1))
        return rows, len(others) - len(others[:num_free]) + self.num_unlisted

    @property
    def bandwidth(self) -> TrafficTotals:
        """Totals of transferred bytes; each byte that one member sends is received by another."""
        return TrafficTotals(self.payload_bytes, self.data_parallel_bytes or None)

    @property
    def milli_tokens_witnessed(self) -> int:
        return sum(machine.milli_tokens_witnessed for machine in self.machines.values())

    def days_of(self, peer_ids: Iterable[str]) -> tuple[DayOfWork, ...]:
        """Return the days with a round of any of these machines, oldest first."""
        machines = [self.machines[peer_id] for peer_id in peer_ids if peer_id in self.machines]
        days = sorted({day for machine in machines for day, count in machine.days.items() if count > 0})
        return tuple(
            DayOfWork(day, sum(one.work.get(day, 0) for one in machines), sum(one.days.get(day, 0) for one in machines))
            for day in days
        )

    def logs_of(self, row: ContributorRow) -> list[WorkLog]:
        """Return the logs of a contributor's machines that signed commits name."""
        machines = (self.machines.get(machine.peer_id) for machine in row.machines)
        return [machine.log for machine in machines if machine is not None and machine.log.receipts]

    def recent_work(self, now: float) -> dict[str, int]:
        """Return by machine the thousandths of tokens in its rounds since the beginning of yesterday (UTC).

        Work that only the machine itself signed counts up to the most that was witnessed of any machine: a machine that
        always leads and reduces has no witness, but could sign anything.
        """
        today = int(now // SECONDS_PER_DAY)
        days = (today, today - 1)
        witnessed, reported = {}, {}
        for peer_id, machine in self.machines.items():
            if rounds := sum(machine.days.get(day, 0) for day in days):
                witnessed[peer_id] = sum(machine.work.get(day, 0) for day in days)
                reported[peer_id] = rounds * machine.milli_tokens_reported // max(1, machine.rounds)
        most = max(witnessed.values(), default=0)
        return {peer_id: max(witnessed[peer_id], min(claimed, most)) for peer_id, claimed in reported.items()}

    def shown_profile(self, contributor_id: str) -> Profile | None:
        """Return the profile, unless its owner hides it."""
        profile = self.profiles.get(contributor_id)
        return None if profile is None or profile.is_hidden else profile

    def shown_name(self, peer_id: str) -> str:
        """Return a machine's public name; empty: none."""
        contributor_id = self.contributor_of(peer_id)
        if contributor_id in self.profiles:
            profile = self.shown_profile(contributor_id)
            return profile.name if profile is not None else ""
        if self.is_withdrawn(peer_id):
            return ""
        row, machine = self.present.get(peer_id), self.machines.get(peer_id)
        return row.record.name if row is not None else machine.name if machine is not None else ""

    def is_withdrawn(self, peer_id: str) -> bool:
        """Return whether a hidden profile lists this machine, and the machine's present or former record names that
        contributor.
        """
        machine, row = self.machines.get(peer_id), self.present.get(peer_id)
        keys = ("" if machine is None else machine.contributor_key, "" if row is None else row.contributor_id)
        return any(key in self.profiles and self.profiles[key].is_hidden for key in keys)

    def _row(self, contributor_id: str, machines: Sequence[MachineTotals], total: int, place: int) -> ContributorRow:
        profile = self.shown_profile(contributor_id)
        witnessed = sum(machine.milli_tokens_witnessed for machine in machines)
        rows = [self._machine_row(machine) for machine in machines]
        rows.sort(key=lambda row: (-row.milli_tokens_witnessed, row.first_at, row.peer_id))
        return ContributorRow(
            contributor_id=contributor_id,
            name=self.shown_name(machines[0].peer_id),
            country=profile.country if profile is not None else "",
            milli_tokens_witnessed=witnessed,
            milli_tokens_reported=sum(machine.milli_tokens_reported for machine in machines),
            share=witnessed / total if total else 0.0,
            rounds=sum(machine.rounds for machine in machines),
            rounds_missed=sum(machine.rounds_missed for machine in machines),
            first_at=min(row.first_at for row in rows),
            last_at=max(row.last_at for row in rows),
            is_here=any(row.condition == "here" for row in rows),
            machines=tuple(rows),
            rank=place if witnessed > 0 else 0,
            team=profile.team if profile is not None else "",
        )

    def _machine_row(self, machine: MachineTotals) -> MachineRow:
        row = self.present.get(machine.peer_id)
        return MachineRow(
            peer_id=machine.peer_id,
            device=machine.device,
            condition=row.condition if row is not None else "silent",
            milli_tokens_witnessed=machine.milli_tokens_witnessed,
            rounds=machine.rounds,
            first_at=machine.first_at if math.isfinite(machine.first_at) else machine.last_at,
            last_at=machine.last_at,
            uptime_seconds=machine.uptime_seconds,
            milli_tokens_reported=machine.milli_tokens_reported,
            rounds_missed=machine.rounds_missed,
        )

    def _book(self, booking: Booking) -> None:
        receipt, sign = booking.receipt, booking.sign
        self.payload_bytes += sign * receipt.payload_bytes
        self.data_parallel_bytes += sign * receipt.data_parallel_bytes
        for share in booking.shares:
            machine = self.machines.get(share.peer_id)
            if machine is None:
                if sign < 0 or len(self.machines) >= MAX_MACHINES:
                    self.num_unlisted += max(0, sign)
                    continue
                machine = self.machines[share.peer_id] = MachineTotals(share.peer_id)
                if (row := self.present.get(share.peer_id)) is not None:
                    machine.meet(row)
            machine.credit(share, receipt, sign)


def _witnessed(machines: Sequence[MachineTotals]) -> int:
    return sum(machine.milli_tokens_witnessed for machine in machines)


def _rank_key(contributor_id: str, machines: Sequence[MachineTotals]) -> tuple[int, int, float, str]:
    witnessed = _witnessed(machines)
    reported = sum(machine.milli_tokens_reported for machine in machines)
    return -witnessed, -reported, min(machine.first_at for machine in machines), contributor_id
