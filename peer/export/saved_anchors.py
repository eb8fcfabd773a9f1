"""Reads a run's anchors from a checkpoint of a peer on this machine, and computes every digest again."""

from __future__ import annotations

import math
import time

import numpy as np

from averaging.outer.fragment_anchor_and_residual import FragmentState
from dht.ground.errors import Incompatible, PeerFault, UsageFault, reading
from dht.ground.quantities import count_text, seconds_text
from dht.ground.regular_files import read_regular
from dht.identity.keys import peer_id_of
from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES, decode_run_record
from peer.checkpoint.checkpoint import CheckpointFolder, CheckpointOwner
from peer.config.averaging_rules import codecs_of, rule_of
from peer.config.manifest import RunManifest
from peer.config.model_shapes import layout_digest_of, seed_sizes
from peer.config.peer_config import CHECKPOINTS_NAME, RUN_RECORD_NAME
from peer.console.notices import notice, say
from peer.export.formats.anchors import Anchors, facts_of
from peer.export.model_source import CheckpointSource
from peer.files.checked_folder import checked_folder
from peer.memory.least_memory import check_memory, free_memory_bytes


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
