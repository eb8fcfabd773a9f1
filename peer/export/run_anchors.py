"""A run's anchors: from its members, confirmed by their digests, or from a checkpoint on this machine."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.signing.commit_log import MAX_LOGGED_COMMITS
from dht.ground.errors import Incompatible, LocalFault, NobodyReachable, PeerFault, UsageFault, reading
from dht.ground.host import PeerId
from dht.ground.quantities import bytes_text, count_text, plural, seconds_text
from dht.ground.regular_files import read_regular
from dht.identity.keys import peer_id_of
from dht.records.peer_record import PeerRecord
from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES, decode_run_record
from peer.checkpoint.checkpoint import CheckpointFolder, CheckpointOwner
from peer.config.averaging_rules import codecs_of, rule_of
from peer.config.manifest import RunManifest
from peer.config.model_shapes import layout_digest_of, seed_sizes
from peer.config.peer_config import CHECKPOINTS_NAME, RUN_RECORD_NAME
from peer.console.notices import notice, say
from peer.console.progress import tell_progress
from peer.export.formats.anchors import Anchors, facts_of
from peer.export.model_source import CheckpointSource, ModelSource
from peer.files.checked_folder import checked_folder
from peer.memory.least_memory import check_memory, free_memory_bytes
from peer.observe.observer import RunObserver, observe
from peer.observe.observer_entry import observer_entry
from peer.observe.run_and_address import Target

LOOK_SECONDS = 1.0
"""Pause between two searches for members that have a state."""
SHOWN_SECONDS = 1.0
"""Pause between two progress lines on a terminal."""


def anchors_of(source: ModelSource) -> Anchors:
    """Return a run's anchors, with a progress line on a terminal.

    Raises:
        LocalFault: the anchors cannot be obtained; the message gives the reason.
    """
    match source:
        case Target():
            return anchors_of_members(source)
        case CheckpointSource():
            return anchors_of_checkpoint(source)
        case Path():
            raise UsageFault(f"{source} is an exported folder already; expected a run or a checkpoint.")


def anchors_of_members(source: Target) -> Anchors:
    """Fetch the anchors of a live run, with a progress line on a terminal.

    Raises:
        NobodyReachable: no member with a state was found in time.
        LocalFault: a fragment could not be fetched, or members contradict each other about it.
    """
    return asyncio.run(_anchors_of_members(source, _teller()))


async def _anchors_of_members(source: Target, on_progress: Callable[[int, int], None]) -> Anchors:
    entry = observer_entry(source.run_id, source.observer_folder)
    tell_progress(f"looking for members of {source.run_id}")
    async with observe(source.run_id, source.addresses, source.timeout_seconds, entry=entry) as observer:
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
            raise LocalFault(f"fragment {index} does not have the digest on which members agree; try again")
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
                "one that trains or serves; try again when a member has joined"
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


def anchors_of_checkpoint(source: CheckpointSource) -> Anchors:
    """Return the anchors of the newest complete checkpoint in a peer's data folder; every digest is computed again.

    Raises:
        UsageFault: the folder does not belong to the run, or has no usable checkpoint.
    """
    record_path = source.folder / RUN_RECORD_NAME
    try:
        with reading(record_path, "the data folder of a peer of this run."):
            record = decode_run_record(read_regular(record_path, MAX_RUN_RECORD_BYTES), run_id=source.run_id)
        manifest = RunManifest.from_bytes(record.manifest, takes_part=False)
    except PeerFault as error:
        raise UsageFault(f"{record_path} is not of run {source.run_id} ({error.what}).") from error
    except ValueError as error:
        raise Incompatible(f"the manifest in {record_path} does not fit this software: {error}") from error
    check_memory(manifest, "read", free_memory_bytes())
    sizes = seed_sizes(manifest)
    # The owner matters only for that peer's totals.
    owner = CheckpointOwner(source.run_id, peer_id_of(bytes(32)), manifest.hash, layout_digest_of(manifest), sizes)
    saved, unusable = CheckpointFolder(source.folder / CHECKPOINTS_NAME, owner, math.inf).newest()
    if saved is None:
        reason = "; ".join(f"{one.path}: {one.reason}" for one in unusable)
        reason = reason or f"{source.folder / CHECKPOINTS_NAME} has none"
        raise UsageFault(f"no usable checkpoint: {reason}; expected one of run {source.run_id}.")
    for one in unusable:
        say(f"{one.path} cannot be used: {one.reason}; the previous checkpoint is used instead.")
    values, facts, codecs = {}, [], codecs_of(manifest, len(sizes))
    for index, size in enumerate(sizes):
        anchor, momentum, residual = (np.zeros(size, dtype=np.float32) for _ in range(3))
        state = FragmentState(rule_of(manifest), codecs[index], anchor, momentum, residual)
        saved.restore(index, state)
        values[index] = state.anchor
        facts.append(facts_of(index, state.version, state.lineage_tokens, state.anchor, state.momentum, 0))
    files = checked_folder(source.folder, manifest) if manifest.files else None
    anchors = Anchors(source.run_id, manifest, tuple(facts), values, f"checkpoint {saved.path}", files=files)
    age = seconds_text(max(0.0, time.time() - saved.saved_at))
    newer = "" if saved.is_settled else "; the running peer has newer work: pass RUN instead of --checkpoint"
    notice(f"The checkpoint was saved {age} ago, with {count_text(anchors.tokens)} tokens committed{newer}.")
    return anchors
