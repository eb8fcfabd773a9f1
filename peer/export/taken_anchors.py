"""A run's anchors, from its members or from a checkpoint, every digest computed again."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable

import numpy as np

from averaging.outer.fragment_state import FragmentState
from dht.errors import Incompatible, LocalFault, NobodyReachable, PeerFault, UsageFault, reading
from dht.host import PeerId
from dht.identity.keys import peer_id_of
from dht.quantities import bytes_text, count_text, plural, seconds_text
from dht.records.signed_records import MAX_RUN_RECORD_BYTES, PeerRecord, decode_run_record
from dht.regular_files import read_regular
from peer.checkpoint.checkpoint import CheckpointFolder, CheckpointOwner
from peer.config.averaging_rules import codecs_of, rule_of
from peer.config.manifest import RunManifest
from peer.config.model_shapes import layout_digest_of, seed_sizes
from peer.config.peer_config import CHECKPOINTS_NAME, RUN_RECORD_NAME
from peer.console.first_lines import notice, say
from peer.console.progress import tell_progress
from peer.export.formats.anchors import Anchors, facts_of
from peer.export.model_source import CheckpointSource, ModelFileSource, ModelSource, RunSource
from peer.files.checked_folder import checked_folder
from peer.memory.least_memory import check_memory, free_memory_bytes
from peer.observe.observer import RunObserver, observe
from peer.observe.observer_entry import observer_entry

LOOK_SECONDS = 1.0
"""Between two looks for members that have a state."""
SHOWN_SECONDS = 1.0
"""Between two lines of progress on a terminal."""


def anchors_of(source: ModelSource) -> Anchors:
    """A run's anchors, with a line of progress on a terminal.

    Raises:
        LocalFault: they cannot be had; the sentence says why.
    """
    match source:
        case RunSource():
            return asyncio.run(anchors_of_run(source, _teller()))
        case CheckpointSource():
            return anchors_of_checkpoint(source)
        case ModelFileSource():
            raise UsageFault(f"{source.path} is a model file already; expected a run or a checkpoint to take it from.")


def anchors_of_checkpoint(source: CheckpointSource) -> Anchors:
    """The anchors of the newest whole checkpoint in a peer's data folder; every digest is computed again.

    Raises:
        UsageFault: the folder does not belong to the run, or has no usable checkpoint.
    """
    record_path = source.folder / RUN_RECORD_NAME
    try:
        with reading(record_path, "the data folder of a peer of this run."):
            record = decode_run_record(read_regular(record_path, MAX_RUN_RECORD_BYTES), run_id=source.run_id)
        manifest = RunManifest.from_bytes(record.manifest)
    except PeerFault as error:
        raise UsageFault(f"{record_path} is not of run {source.run_id} ({error.what}).") from error
    except ValueError as error:
        raise Incompatible(f"the manifest in {record_path} does not fit this software: {error}") from error
    check_memory(manifest, "read", free_memory_bytes())
    sizes = seed_sizes(manifest)
    # Whose checkpoint it is matters only for that peer's totals.
    owner = CheckpointOwner(source.run_id, peer_id_of(bytes(32)), manifest.hash, layout_digest_of(manifest), sizes)
    saved, unusable = CheckpointFolder(source.folder / CHECKPOINTS_NAME, owner, math.inf).newest()
    if saved is None:
        reason = "; ".join(f"{one.path}: {one.reason}" for one in unusable)
        reason = reason or f"{source.folder / CHECKPOINTS_NAME} has none"
        raise UsageFault(f"no usable checkpoint: {reason}; expected one of run {source.run_id}.")
    for one in unusable:
        say(f"{one.path} cannot be used: {one.reason}; the one before it is taken.")
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
    newer = "" if saved.is_settled else "; a peer that runs has more: name RUN in place of --checkpoint"
    notice(f"The checkpoint was saved {age} ago, with {count_text(anchors.tokens)} tokens committed{newer}.")
    return anchors


async def anchors_of_run(source: RunSource, on_progress: Callable[[int, int], None]) -> Anchors:
    """The anchors of a live run, fetched from all members that have them and confirmed by their digests.

    Raises:
        NobodyReachable: no member with a state was found in time.
        LocalFault: a fragment could not be had, or members contradict each other about it.
    """
    entry = observer_entry(source.run_id, source.observer_folder)
    tell_progress(f"looking for members of {source.run_id}")
    async with observe(source.run_id, list(source.peers), source.timeout_seconds, entry=entry) as observer:
        records = await _members_with_state(observer, source.timeout_seconds)
        manifest = observer.manifest
        check_memory(manifest, "read", free_memory_bytes())
        tell_progress(f"fetching {plural(manifest.num_fragments, 'fragment')} from {plural(len(records), 'member')}")
        found = await observer.fetch_anchors(records, on_progress)
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
    losses = [(record.held_out_version, record.held_out_loss) for record in records if record.held_out_loss is not None]
    version, loss = max(losses, default=(None, None))
    origin = f"run {source.run_id}, {plural(len(records), 'member')}"
    contributors = tuple(sorted({contributor_of(record) for record in records}))
    return Anchors(source.run_id, manifest, tuple(facts), values, origin, loss, version, contributors, files)


def contributor_of(record: PeerRecord) -> PeerId:
    """The id of the person whose machine a member is, or of the machine if it names nobody."""
    return peer_id_of(record.contributor_key) if record.contributor_key else record.peer_id


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
    """A line of progress on standard error now and then, for people only."""
    shown_at = time.monotonic()

    def show_progress(done_bytes: int, total_bytes: int) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if sys.stderr.isatty() and now - shown_at >= SHOWN_SECONDS:
            shown_at = now
            print(f"fetched {bytes_text(done_bytes)} of {bytes_text(total_bytes)}", file=sys.stderr, flush=True)

    return show_progress
