"""Fetches a run's anchors from its members, confirmed by their digests."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence

from averaging.signing.commit_log import MAX_LOGGED_COMMITS
from dht.ground.errors import LocalFault, NobodyReachable
from dht.ground.host import PeerId
from dht.ground.quantities import bytes_text, plural
from dht.identity.keys import peer_id_of
from dht.records.peer_record import PeerRecord
from peer.console.progress import tell_progress
from peer.export.formats.anchors import Anchors, facts_of
from peer.export.model_source import RunSource
from peer.memory.least_memory import check_memory, free_memory_bytes
from peer.observe.observer import RunObserver, observe
from peer.observe.observer_entry import observer_entry

LOOK_SECONDS = 1.0
"""Pause between two searches for members that have a state."""
SHOWN_SECONDS = 1.0
"""Pause between two progress lines on a terminal."""


def anchors_of_members(source: RunSource) -> Anchors:
    """Fetch the anchors of a live run, with a progress line on a terminal.

    Raises:
        NobodyReachable: no member with a state was found in time.
        LocalFault: a fragment could not be fetched, or members contradict each other about it.
    """
    return asyncio.run(_anchors_of_members(source, _teller()))


async def _anchors_of_members(source: RunSource, on_progress: Callable[[int, int], None]) -> Anchors:
    entry = observer_entry(source.run_id, source.observer_folder)
    tell_progress(f"looking for members of {source.run_id}")
    async with observe(source.run_id, list(source.peers), source.timeout_seconds, entry=entry) as observer:
        records = await _members_with_state(observer, source.timeout_seconds)
        manifest = observer.manifest
        check_memory(manifest, "read", free_memory_bytes())
        tell_progress(f"fetching {plural(manifest.num_fragments, 'fragment')} from {plural(len(records), 'member')}")
        found = await observer.fetch_anchors(records, on_progress)
        view = await observer.run_view(records, MAX_LOGGED_COMMITS)
        files = None
        if manifest.files:
            files = await observer.fetch_files(source.observer_folder, source.timeout_seconds)
    values, facts = {}, []
    for index, fetched in enumerate(found):
        snapshot, num_confirmed = fetched.snapshot, len(fetched.confirmed_by)
        fact = facts_of(
            index, snapshot.version, snapshot.lineage_tokens, snapshot.anchor, snapshot.momentum, num_confirmed
        )
        if fact.digest != snapshot.digest.hex():
            raise LocalFault(f"fragment {index} does not have the digest that was agreed on; try again")
        values[index] = snapshot.anchor
        facts.append(fact)
    origin = f"run {source.run_id}, {plural(len(records), 'member')}"
    contributors = contributors_of(view.electors)
    return Anchors(source.run_id, manifest, tuple(facts), values, origin, view.evaluation, contributors, files)


def contributors_of(records: Sequence[PeerRecord]) -> tuple[PeerId, ...]:
    """Return the ids of people whose machines have trained, or the ids of machines without a person."""
    trained = (record for record in records if record.tokens)  # a seed has no tokens
    return tuple(sorted({peer_id_of(one.contributor_key) if one.contributor_key else one.peer_id for one in trained}))


async def _members_with_state(observer: RunObserver, timeout_seconds: float) -> list[PeerRecord]:
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_seconds
    while True:
        records = [record for record in await observer.records() if record.versions and record.state != "joining"]
        if records:
            return records
        if loop.time() >= end:
            raise NobodyReachable(
                f"run {observer.run_id}: no member announced a state within {timeout_seconds:.0f} s; expected at least "
                "one that trains or serves; try again when somebody has joined"
            )
        await asyncio.sleep(LOOK_SECONDS)


def _teller() -> Callable[[int, int], None]:
    """Return a function that prints progress to a terminal's standard error now and then, and at the end."""
    shown_at, shown_bytes = time.monotonic(), 0

    def show_progress(done_bytes: int, total_bytes: int) -> None:
        nonlocal shown_at, shown_bytes
        now = time.monotonic()
        is_due = now - shown_at >= SHOWN_SECONDS or done_bytes == total_bytes
        if sys.stderr.isatty() and is_due and done_bytes > shown_bytes:
            shown_at, shown_bytes = now, done_bytes
            print(f"fetched {bytes_text(done_bytes)} of {bytes_text(total_bytes)}", file=sys.stderr, flush=True)

    return show_progress
