"""`DashboardState`: combination of all observations. Pure, and bounded whatever strangers publish.

All values here are *reported*: peers state them, unchecked. Medians instead of means represent the swarm, so that one
liar among honest peers changes nothing. Measured values stay when their peers have gone.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

from dashboard.history_facts import Condition, RoundFacts
from dashboard.observe.listed_peers import Look, PeerRow, merge_peers
from dashboard.observe.round_timeline import Lanes, merge_lanes
from dashboard.observe.shown_manifest import ShownManifest
from dht.ground.host import PeerId
from dht.identity.join_link import JoinLink, join_link
from dht.records.peer_record import PeerRecord
from peer.installation import with_extra
from peer.view.run_clock import has_stalled
from peer.view.run_view import NOWHERE, RunView, run_view_of

MAX_ROUNDS: Final = 60
MAX_FRAGMENTS_SHOWN: Final = 256

GONE: Final = ("late", "silent")
"""Conditions of peers that are absent without a goodbye."""

Phase = Literal["starting", "looking", "no run", "empty", "live", "stalled", "resting", "silent", "ended"]


@dataclass(frozen=True, slots=True)
class FragmentRow:
    """Progress of the live peers on one fragment."""

    fragment: int
    version: int
    """The head, as in `RunView`."""
    committed_tokens: int
    """Tokens in the most common anchor at that version."""
    num_peers: int
    num_current: int
    largest_lag: int
    """In versions; part of it is the age of the peers' records."""
    num_forked: int
    """Peers whose anchor differs from the most common one at the same version: a split swarm, or a liar."""


@dataclass(frozen=True, slots=True)
class DashboardState:
    """All data of the page and the API. Times are unix seconds."""

    run_id: str
    started_at: float
    """Start of this observation; earlier times are unknown."""
    now: float
    has_looked: bool = False
    """Whether the first observation is complete; before it nothing is known, not even that no peer is there."""
    num_members: int = 0
    run: ShownManifest | None = None
    peers: tuple[PeerRow, ...] = ()
    num_unlisted: int = 0
    num_invalid_records: int = 0
    """Records refused in the newest observation."""
    fragments: tuple[FragmentRow, ...] = ()
    rounds: tuple[RoundFacts, ...] = ()
    """Rounds according to peer records, newest first."""
    view: RunView = NOWHERE
    """The run's figures, as in panels and `peer status`."""
    lanes: Lanes = field(default_factory=dict)
    """Timings of the live peers' newest rounds."""
    heard_at: float | None = None
    """When the newest record was first received."""
    moved_at: float | None = None
    """When a commit was last received, or training began after a time without any."""
    join_addresses: tuple[str, ...] = ()
    """Members' addresses that may be shown to all visitors (`join_addresses.py`)."""
    install: str = ""
    """Command with which visitors install `peer`; empty: no generally valid command is known."""
    problem: str = ""

    @property
    def install_line(self) -> str:
        """`install`, or the command for a local folder, with the extras that this run's model needs."""
        line = self.install or "pip install ./FOLDER"
        return with_extra(line, "hf") if self.run is not None and self.run.model_kind == "hf" else line

    @property
    def join_link(self) -> JoinLink:
        """Link with run and addresses, which `peer join` accepts."""
        return join_link(self.run_id, self.join_addresses)

    @property
    def here(self) -> tuple[PeerRow, ...]:
        """Live peers that use the known manifest."""
        return tuple(row for row in self.peers if row.condition == "here" and row.same_manifest)

    @property
    def num_serving(self) -> int:
        """Number of live peers that do not train and serve newcomers."""
        return sum(not row.record.is_training for row in self.here)

    @property
    def shown_peers(self) -> tuple[PeerRow, ...]:
        """The peers by condition and work. Once the run has ended, absent ones count as having left."""
        rows = self.peers
        if self.has_ended:
            rows = tuple(replace(row, condition="left") if row.condition in GONE else row for row in rows)
        return tuple(sorted(rows, key=_order))

    @property
    def work(self) -> Mapping[PeerId, int]:
        """Work that other members signed for each live peer in commits; at least 1."""
        return {row.record.peer_id: max(1, row.work) for row in self.here if row.is_vouched}

    @property
    def trainers(self) -> tuple[PeerRecord, ...]:
        """Live peers that train; see `RunView.trainers`."""
        return self.view.trainers

    @property
    def late(self) -> tuple[PeerRow, ...]:
        """Peers that missed announcements: perhaps killed or asleep."""
        return tuple(row for row in self.peers if row.condition == "late" and row.same_manifest)

    @property
    def has_ended(self) -> bool:
        """Whether the owner ended the run, and its last version is reached or no peer is left to reach it."""
        end = self.run.end_version if self.run is not None else None
        return end is not None and (not self.here or min((row.version for row in self.fragments), default=0) >= end)

    @property
    def phase(self) -> Phase:
        if self.has_ended:
            return "ended"
        if not self.peers:
            if not self.has_looked:
                return "starting"
            if not self.num_members:
                return "looking"
            return "no run" if self.run is None else "empty"
        if any(row.record.role == "trainer" for row in self.here):
            return "stalled" if self._is_stalled else "live"
        return "resting" if self.here or all(row.condition == "left" for row in self.peers) else "silent"

    @property
    def _is_stalled(self) -> bool:
        """Whether the trainers commit nothing; newcomers without work in a commit do not stall a run."""
        if self.moved_at is None or not self.trainers:
            return False
        rounds = [record.newest_round for record in self.trainers]
        spent = [one.compute_seconds + one.send_seconds + one.receive_seconds for one in rounds if one is not None]
        return has_stalled(self.now - self.moved_at, statistics.median(spent) if spent else 0.0)


def _order(row: PeerRow) -> tuple[int, bool, int, str]:
    return get_args(Condition).index(row.condition), not row.same_manifest, -row.record.tokens, row.record.peer_id


def fold(state: DashboardState, look: Look) -> DashboardState:
    """Return the state after one observation."""
    run = look.run or state.run
    peers, num_unlisted = merge_peers(state.peers, look, run)
    heard = [row.heard_at for row in peers]
    after = replace(
        state,
        now=look.now,
        has_looked=True,
        num_members=look.num_members,
        run=run,
        peers=peers,
        num_unlisted=num_unlisted,
        num_invalid_records=look.num_invalid_records,
        heard_at=max(heard) if heard else None,
        problem=look.problem,
    )
    live = [row.record for row in after.here]
    view = run_view_of(live, after.work, look.now, state.view)
    after = replace(after, view=view, lanes=merge_lanes(state.lanes, live, look.now))
    if any(any(record.lineage_tokens) for record in view.electors):
        after = replace(after, fragments=fragment_rows(live, view))
    has_moved = view.num_rounds > state.view.num_rounds or (bool(after.trainers) and not state.trainers)
    after = replace(
        after,
        moved_at=look.now if has_moved else state.moved_at,
    )
    return _with_rounds(after, state, look)


def fragment_rows(records: Sequence[PeerRecord], view: RunView) -> tuple[FragmentRow, ...]:
    """Return one row for each fragment of `view`, without records that divide the model differently.

    Args:
        records: records of all live peers, which are counted.
    """
    num_fragments = len(view.versions)
    members = [record for record in records if len(record.versions) == num_fragments]
    electors = [record for record in view.electors if len(record.versions) == num_fragments]
    rows = []
    for fragment, version in enumerate(view.versions[:MAX_FRAGMENTS_SHOWN]):
        heads = Counter(
            (record.lineage_tokens[fragment], record.digests[fragment])
            for record in electors
            if record.versions[fragment] == version
        )
        tokens, digest = max(heads, key=lambda head: (heads[head], head))
        # There are far fewer anchors than peers: compare those at one version.
        anchors: dict[int, Counter[bytes]] = {}
        for (held, held_digest), count in Counter(
            (record.versions[fragment], record.digests[fragment]) for record in members
        ).items():
            anchors.setdefault(held, Counter())[held_digest] += count
        rows.append(
            FragmentRow(
                fragment=fragment,
                version=version,
                committed_tokens=tokens,
                num_peers=len(members),
                num_current=anchors[version][digest],
                largest_lag=max(0, version - min(anchors)),
                num_forked=sum(counts.total() - max(counts.values()) for counts in anchors.values()),
            )
        )
    return tuple(rows)


def _with_rounds(after: DashboardState, before: DashboardState, look: Look) -> DashboardState:
    rounds = {(row.fragment, row.version): row for row in before.rounds}
    old_versions = {row.fragment: row.version for row in before.fragments}
    for row in after.fragments:
        # The first observation only shows the present versions: those rounds are older than this observation.
        num_rounds = row.version - old_versions.get(row.fragment, row.version)
        if num_rounds > 0:
            facts = RoundFacts(row.fragment, row.version - 1, look.now, num_rounds=num_rounds)
            rounds.setdefault((facts.fragment, facts.version), facts)
    newest = sorted(rounds.values(), key=lambda row: (-row.seen_at, -row.version, row.fragment))
    return replace(after, rounds=tuple(newest[:MAX_ROUNDS]))
