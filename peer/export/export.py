"""`peer export`, `peer sample` and `peer evaluate`: the model a run has made, used outside of the run."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from averaging.outer.fragment_state import FragmentState
from averaging.signing.notary import Checker, Scope
from dht.errors import Incompatible, LocalFault, NobodyReachable, PeerFault, UsageFault
from dht.host import PeerId
from dht.identity.keys import peer_id_of, verify
from dht.quantities import bytes_text, count_text, plural
from dht.records.signed_records import MAX_RUN_RECORD_BYTES, PeerRecord, decode_run_record
from dht.regular_files import read_regular
from peer.checkpoint.checkpoint import CheckpointFolder, CheckpointOwner
from peer.config.data_source import reads_bytes, source_here
from peer.config.layouts import layout_digest_of, seed_sizes
from peer.config.least_memory import check_memory, free_memory_bytes
from peer.config.manifest import RunManifest
from peer.config.peer_config import CHECKPOINTS_NAME, RUN_RECORD_NAME
from peer.config.run_rules import codec_of, limits_of, rule_of
from peer.export.anchors import Anchors, facts_of
from peer.export.model_file import check_writable, write_model
from peer.export.model_folder import check_folder, write_folder
from peer.export.model_source import CheckpointSource, Form, ModelFileSource, ModelSource, RunSource
from peer.export.reading import model_of, read_model
from peer.network.anchors.fetcher import Fetched, Fetcher, FetchProgress
from peer.observe.entry import observer_entry
from peer.observe.observer import RunObserver, observe
from peer.trainer.data.corpus import open_corpus
from peer.trainer.devices.select import select_device
from peer.trainer.model.evaluation import held_out_loss
from peer.trainer.model.gpt import GPT
from peer.trainer.model.sampling import NUM_BYTES, sample_tokens, shown_text, write_pieces

LOOK_SECONDS = 1.0
"""Between two looks for members that have a state."""
SHOWN_SECONDS = 1.0
"""Between two lines of progress on a terminal."""


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model ready for use, wherever it came from."""

    model: GPT
    manifest: RunManifest
    run_id: str
    versions: tuple[int, ...]
    tokens: int

    @property
    def reads_bytes(self) -> bool:
        """Whether its tokens are the bytes of text."""
        return reads_bytes(self.manifest.data.source)


# ------------------------------------------------------------------------------------------------------- the commands


def export_model(source: ModelSource, out: Path, force: bool, as_json: bool, form: Form = "safetensors") -> int:
    """Write a run's model to `out`; returns the exit code.

    Args:
        form: hf: `out` is a folder; safetensors: a file, with its `config.json` beside it.

    Raises:
        LocalFault: nobody reachable, anchors that members do not confirm, a file in the way, a full disk; the
            sentence says which.
    """
    check, write = (check_folder, write_folder) if form == "hf" else (check_writable, write_model)
    check(out, replace=force)
    anchors = _anchors_of(source)
    config = write(anchors, out, time.time(), replace=force)
    if as_json:
        print(json.dumps({"out": str(out), **{key: value for key, value in config.items() if key != "manifest"}}))
        return 0
    print(f"Model       {out}  ({bytes_text(anchors.num_bytes)}{_kind_text(config)})")
    print(f"From        {anchors.origin}")
    for facts in anchors.facts:
        confirmed = f"confirmed by {plural(facts.num_confirmed, 'member')}" if facts.num_confirmed else "as saved"
        print(f"Fragment {facts.index:<3}version {facts.version}, digest {facts.digest[:16]}, {confirmed}")
    loss = "not known" if anchors.held_out_loss is None else f"{anchors.held_out_loss:.4f} nats per token"
    print(f"Tokens      {count_text(anchors.tokens)} committed; held-out loss {loss} (reported by members)")
    return 0


def _kind_text(config: Mapping[str, Any]) -> str:
    """What loads it, behind its size."""
    if config.get("architecture"):
        return f", {config['architecture']}: transformers loads the folder"
    custom = config["manifest"]["model"]["kind"] == "custom"
    return ", flat fragments of a module from its owner's own code: load them with that code" if custom else ""


def evaluate_model(source: ModelSource, data: str | None, device_name: str, as_json: bool) -> int:
    """Print the held-out loss of a model; returns the exit code.

    Args:
        data: measure on the held-out part of this instead of the run's own source.

    Raises:
        LocalFault: the model or the data cannot be had; the sentence says why.
    """
    device = select_device(device_name)
    opened = open_model(source)
    manifest = opened.manifest
    used = source_here(manifest.data.source, data)
    corpus = open_corpus(
        used,
        vocab_size=manifest.model.vocab_size,
        context=manifest.model.context,
        held_out_fraction=manifest.data.held_out_fraction,
    )
    loss = held_out_loss(
        opened.model.to(device), corpus, manifest.data.evaluation_batches, manifest.training.batch_size
    )
    facts: dict[str, Any] = {
        "schema": 1,
        "run_id": opened.run_id,
        "versions": list(opened.versions),
        "tokens": opened.tokens,
        "data": used,
        "num_held_out_tokens": manifest.data.evaluation_batches * manifest.training.batch_size * manifest.model.context,
        "held_out_loss": loss if math.isfinite(loss) else None,
        "bits_per_byte": loss / math.log(2) if math.isfinite(loss) and reads_bytes(used) else None,
    }
    if as_json:
        print(json.dumps(facts))
        return 0
    print(f"Run         {opened.run_id}, versions {'/'.join(map(str, opened.versions))}")
    print(f"Data        held-out part of {used}, {count_text(facts['num_held_out_tokens'])} tokens")
    print(f"Loss        {loss:.4f} nats per token")
    if facts["bits_per_byte"] is not None:
        print(f"            {facts['bits_per_byte']:.4f} bits per byte")
    return 0


def sample_model(
    source: ModelSource, prompt: str, max_tokens: int, temperature: float, seed: int, device_name: str
) -> int:
    """Print what a model says after `prompt`, each character as soon as it is there; returns the exit code.

    Raises:
        LocalFault: the model cannot be had, or its tokens are not bytes.
    """
    device = select_device(device_name)
    opened = open_model(source)
    if not opened.reads_bytes or opened.manifest.model.vocab_size < NUM_BYTES:
        raise Incompatible(
            f"run {opened.run_id} reads tokens of its own ({opened.manifest.data.source}); expected a run that reads "
            "bytes; export the model and sample it with that tokenizer"
        )
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    # What a shell passed through undecoded comes back as the bytes it was.
    begin = prompt.encode("utf-8", "surrogateescape")
    tokens = sample_tokens(
        opened.model.to(device),
        begin or b"\n",
        num_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        num_choices=NUM_BYTES,
    )

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    write_pieces(shown_text(tokens, begin), write)
    return 0


def open_model(source: ModelSource) -> OpenedModel:
    """The model of any source, on the CPU.

    Raises:
        LocalFault: it cannot be had; the sentence says why.
    """
    if isinstance(source, ModelFileSource):
        found = read_model(source.path)
        header = found.header
        return OpenedModel(found.model, found.manifest, header.run_id, tuple(header.versions), header.tokens)
    anchors = _anchors_of(source)
    return OpenedModel(model_of(anchors), anchors.manifest, anchors.run_id, anchors.versions, anchors.tokens)


# -------------------------------------------------------------------------------------------------------- the sources


def _anchors_of(source: ModelSource) -> Anchors:
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
        record = decode_run_record(read_regular(record_path, MAX_RUN_RECORD_BYTES), run_id=source.run_id)
        manifest = RunManifest.from_bytes(record.manifest)
    except OSError as error:
        raise UsageFault(f"{record_path}: {error.strerror}; expected the data folder of a peer of this run.") from error
    except PeerFault as error:
        raise UsageFault(f"{record_path} is not of run {source.run_id} ({error.what}).") from error
    except ValueError as error:
        raise Incompatible(f"the manifest in {record_path} does not fit this software: {error}") from error
    check_memory(manifest, "read", free_memory_bytes())
    sizes = seed_sizes(manifest)
    # Whose checkpoint it is matters only for that peer's totals.
    owner = CheckpointOwner(source.run_id, peer_id_of(bytes(32)), manifest.hash, layout_digest_of(manifest), sizes)
    saved, complaints = CheckpointFolder(source.folder / CHECKPOINTS_NAME, owner, math.inf).newest()
    if saved is None:
        reason = "; ".join(complaints) or f"{source.folder / CHECKPOINTS_NAME} has none"
        raise UsageFault(f"no usable checkpoint: {reason}; expected one of run {source.run_id}.")
    values, facts = {}, []
    for index, size in enumerate(sizes):
        anchor, momentum, residual = (np.zeros(size, dtype=np.float32) for _ in range(3))
        state = FragmentState(rule_of(manifest), codec_of(manifest), anchor, momentum, residual)
        saved.restore(index, state)
        values[index] = state.anchor
        facts.append(facts_of(index, state.version, state.lineage_tokens, state.anchor, state.momentum, 0))
    return Anchors(source.run_id, manifest, tuple(facts), values, f"checkpoint {saved.path}")


@dataclass(frozen=True, slots=True)
class _Nothing:
    """What somebody holds who comes with empty hands."""

    num_values: int
    lineage_tokens: int = 0
    digest: bytes = b""


class ObservedMembers:
    """The `Members` port over the records that an observer has read."""

    def __init__(self, records: list[PeerRecord]) -> None:
        self._records = records
        self.reasons: list[str] = []

    def members(self) -> list[PeerRecord]:
        """Those that have not failed."""
        return self._records

    def suspect(self, peer_id: PeerId, reason: str) -> None:
        """Leave it out from now on."""
        self.reasons.append(f"{peer_id[-8:]}: {reason}")
        self._records = [record for record in self._records if record.peer_id != peer_id]


async def anchors_of_run(source: RunSource, on_progress: Callable[[FetchProgress], None]) -> Anchors:
    """The anchors of a live run, fetched from all members that have them and confirmed by their digests.

    Raises:
        NobodyReachable: no member with a state was found in time.
        LocalFault: a fragment could not be had, or members contradict each other about it.
    """
    entry = observer_entry(source.run_id, source.observer_folder)
    async with observe(source.run_id, list(source.peers), source.timeout_seconds, entry=entry) as observer:
        records = await _members_with_state(observer, source.timeout_seconds)
        manifest = observer.manifest
        check_memory(manifest, "read", free_memory_bytes())
        sizes = seed_sizes(manifest)
        members = ObservedMembers(records)
        limits = limits_of(sizes, codec_of(manifest))
        checker = Checker(Scope(source.run_id, manifest.hash), verify)
        fetcher = Fetcher(observer.host, observer.doorkeeper, limits, members, checker)
        found: dict[int, Fetched] = {}

        async def adopt(index: int, fetched: Fetched) -> None:
            found[index] = fetched

        nothing = {index: _Nothing(size) for index, size in enumerate(sizes)}
        await fetcher.fetch_better(nothing, adopt, on_progress)
    missing = sorted(set(nothing) - set(found))
    if missing:
        raise LocalFault(
            f"fragments {missing} of {len(sizes)} could not be had from {plural(len(records), 'member')} "
            f"({'; '.join(members.reasons)[:300] or 'what they sent was refused'}); expected members that confirm each "
            "other's digests; try again while more of them are online"
        )
    values, facts = {}, []
    for index in sorted(found):
        snapshot = found[index].snapshot
        num_confirmed = len(found[index].confirmed_by)
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
    return Anchors(source.run_id, manifest, tuple(facts), values, origin, loss, version, contributors)


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


def _teller() -> Callable[[FetchProgress], None]:
    """A line of progress on standard error now and then, for people only."""
    shown_at = time.monotonic()

    def show_progress(progress: FetchProgress) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if sys.stderr.isatty() and now - shown_at >= SHOWN_SECONDS:
            shown_at = now
            done, total = bytes_text(progress.done_bytes), bytes_text(progress.total_bytes)
            print(f"fetched {done} of {total}", file=sys.stderr, flush=True)

    return show_progress
