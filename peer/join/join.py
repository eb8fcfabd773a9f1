"""`peer join`: one peer that trains, from its flags to its goodbye."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from dht.ground.errors import EXIT_INTERRUPTED, UsageFault
from dht.ground.quantities import count_text
from peer.config.data_source import LIBRARY, source_here
from peer.config.manifest import RunManifest
from peer.config.model_shapes import averaged_parts
from peer.config.peer_config import PeerConfig
from peer.config.training_section import check_optimizer_bits
from peer.events.peer_events import Event, MicroBatchHalved
from peer.join.checkpoint_disk_space import warn_of_room
from peer.join.run_connection import READY_SECONDS, RunConnection
from peer.join.run_introduction import rates_of, run_facts, trained_in
from peer.memory.base_bits import check_base_bits
from peer.memory.least_memory import Use, check_memory, free_memory_bytes
from peer.network.process.child_start import NetworkChild
from peer.owner.custom_module import check_frozen_digest
from peer.panel.terminal import Terminal
from peer.panel.updates import Doing
from peer.process_setup import EARLY_LOADING
from peer.tracking.recorded_rows import OwnRows
from peer.tracking.recorder import recording
from peer.tracking.trackers import own_record
from peer.trainer.computing.compute_choices import ComputeChoices, Tell
from peer.trainer.computing.memory_exceptions import memory_fault
from peer.trainer.computing.recompute_and_attention import prepare_module
from peer.trainer.data.corpus import Corpus, open_run_corpus
from peer.trainer.devices.device_choice import device_of, select_device
from peer.trainer.devices.rank_orders import ALONE, OrderKind, Ranks
from peer.trainer.devices.rank_rendezvous import RankGroup, RankSetup
from peer.trainer.devices.sharding import check_can_shard, check_division, shard
from peer.trainer.devices.torchrun import Place, check_meeting_place, place_from
from peer.trainer.hf.architecture import Compressed
from peer.trainer.hf.base_weights import find_base
from peer.trainer.hf.run_model import build_run_model, check_joinable
from peer.trainer.loop.rank_process import follow
from peer.trainer.loop.trainer import Trainer
from peer.trainer.model.inner_optimizer import load_optimizers

EVALUATE_EVERY_SYNCS = 4
"""Intervals of H steps between two measurements of the validation loss: often enough for a curve, and it takes only one
or two percent of the time."""


def run_rank() -> int:
    """Train in a process of torchrun other than the first, which leads this process. Return the exit code.

    Raises:
        LocalFault: the environment variables from torchrun are wrong, or another process has ended.
    """
    place = place_from(os.environ)
    assert place is not None, "called without several processes in WORLD_SIZE"
    check_meeting_place(place)
    return follow(place)


def run_trainer(config: PeerConfig, child: NetworkChild | None, terminal: Terminal) -> int:
    """Run a peer that trains until it is asked to leave. Return the exit code.

    Args:
        child: the peer's network process, if it has been started already.
        terminal: the terminal that shows the peer; it is `interruptible` already.

    Raises:
        LocalFault: a problem stopped the peer; the message explains what its owner can do.
    """
    place = place_from(os.environ)
    if place is not None:
        check_meeting_place(place)
    terminal.loaded()
    size = _num_devices(config, place)
    here = place or Place(0, 0, size, "", 0)
    device = device_of(config.device, here) if size > 1 else select_device(config.device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    connection = RunConnection(config, terminal.show, terminal.note, child, terminal.tell)
    terminal.step("program", str(device), is_done=True)
    terminal.limit_by(lambda limits: connection.network.limit(rates_of(limits)))
    record = own_record(config, connection.identity.peer_id)
    with recording(record, terminal.note, OwnRows().row) as listener:
        terminal.tell_also(listener)
        # During the first dials, because loading torch's compiler takes seconds of processor time.
        threading.Thread(target=load_optimizers, name=EARLY_LOADING, daemon=True).start()
        return _train(config, terminal, place, device, connection)


def _train(
    config: PeerConfig, terminal: Terminal, place: Place | None, device: torch.device, connection: RunConnection
) -> int:
    size = _num_devices(config, place)
    group = RankGroup(size, place) if size > 1 or config.shard else None
    loaded: _Loaded | None = None
    trainer: Trainer | None = None
    is_orderly = False

    def stop() -> bool:
        connection.network.check()
        if group is not None:
            group.check()
        return terminal.stop_asked() or connection.network.run_has_ended

    try:
        terminal.step("run")
        terminal.keep_folder()
        manifest = connection.open(stop)
        if manifest is not None:
            terminal.tell(run_facts(config.run_id, manifest))
            terminal.step("run", "found", is_done=True)
            terminal.step("model")
            with contextlib.suppress(KeyboardInterrupt), terminal.leaving_at_once():
                loaded = _load(config, manifest, device, group, terminal)
        if manifest is not None and loaded is not None:
            trainer = _build_trainer(config, manifest, connection, loaded, device, terminal)
            if warning := warn_of_room(manifest, config.data_dir, config.checkpoints_path):
                terminal.note(warning)
            num_trained = count_text(trainer.link.layout.num_values)
            terminal.step("model", f"{num_trained} {trained_in(manifest)} on {device}", is_done=True)
            terminal.step("state")
            trainer.run(stop, config.max_steps, terminal.is_resting)
        reason = "asked to stop" if terminal.stop_asked() else "its steps are done"
        if connection.network.run_has_ended:
            reason = "the run has ended"
        connection.close(reason, *([] if trainer is None else [trainer.training.idle]))
        is_orderly = trainer is not None
        if trainer is not None and group is not None and group.ranks is not None:
            group.ranks.order(OrderKind.END)
    except BaseException as error:
        connection.abort()
        explained = memory_fault(error) if group is None else group.explain(error) or memory_fault(error)
        if explained is not None and explained is not error:
            raise explained from error
        raise
    finally:
        if loaded is not None:
            loaded.corpus.close()
        if group is not None:
            group.end(is_orderly=is_orderly and group.ranks is not None)
    # The same exit code as for a signal that arrives while this program loads.
    return EXIT_INTERRUPTED if terminal.left_early else 0


def _num_devices(config: PeerConfig, place: Place | None) -> int:
    """Return the number of processes that train as this peer.

    Raises:
        UsageFault: torchrun and the flags contradict each other.
        DeviceFault: this machine has too few GPUs.
    """
    if place is not None and config.devices not in (None, place.size):
        raise UsageFault(
            f"--devices is {config.devices}, but torchrun started {place.size} processes; expected equal numbers; "
            "leave --devices out, or start without torchrun"
        )
    if place is not None:
        return place.size
    size = config.devices or 1
    for rank in range(size if size > 1 else 0):
        device_of(config.device, Place(rank, rank, size, "", 0))
    return size


class _Loaded(NamedTuple):
    """The module that a peer trains, its data, and the processes that train the module."""

    model: nn.Module
    corpus: Corpus
    ranks: Ranks


def _load(
    config: PeerConfig, manifest: RunManifest, device: torch.device, group: RankGroup | None, terminal: Terminal
) -> _Loaded:
    """Check the flags, build the model and open the data: all slow work before the peer joins the run."""
    check_joinable(config.run_id, manifest)
    source = source_here(manifest.data.source, config.data, manifest.tokenizer is not None, manifest.data.digest)
    use: Use = "train on a GPU" if device.type != "cpu" else "train"
    check_memory(manifest, use, free_memory_bytes(), config.base_bits, config.optimizer_bits)
    check_base_bits(manifest, config.base_bits)
    check_optimizer_bits(manifest.training.optimizer, config.optimizer_bits)
    compressed = None if config.base_bits == "full" else Compressed(int(config.base_bits), device)
    if compressed is not None:
        compressed.check()
    if manifest.model.init is not None:
        terminal.mention("checking the pretrained weights of this run")
    base = find_base(manifest, config.base)
    ranks = ALONE if group is None else _meet(config, manifest, source, base, device, group)
    model = build_run_model(manifest, base, compressed=compressed)
    check_frozen_digest(manifest, model)
    prepare_module(model, ComputeChoices.of(config))
    model = shard(model, device, offloads=config.offload) if config.shard else model.to(device)
    corpus = open_run_corpus(
        manifest,
        source,
        config.data_dir,
        terminal.note,
        limit_bytes=int(config.data_limit_gib * 2**30),
        is_own=config.data is not None,
    )
    chooser = "chosen by the run" if config.data is None else "chosen with --data"
    what = "Python's own library" if source == LIBRARY else source
    terminal.mention(f"training on {what} ({chooser}; {corpus.facts})")
    return _Loaded(model, corpus, ranks)


def _build_trainer(
    config: PeerConfig,
    manifest: RunManifest,
    connection: RunConnection,
    loaded: _Loaded,
    device: torch.device,
    terminal: Terminal,
) -> Trainer:
    model, corpus, ranks = loaded
    ref_device = torch.device("cpu") if config.offload else None
    peer_id = connection.identity.peer_id

    def tell_smaller(before: int, now: int) -> None:
        terminal.show(Event(time.time(), peer_id, MicroBatchHalved(before, now)))

    def tell_compiling(is_compiling: bool) -> None:
        terminal.tell(Doing("compiling" if is_compiling else "compiled"))

    parameters, buffers = averaged_parts(model, manifest)
    link = connection.link(manifest, parameters, device, ranks, ref_device, buffers)
    return Trainer(
        model,
        corpus,
        manifest.training,
        link,
        seed=manifest.seed,
        peer_id=peer_id,
        device=device,
        evaluate_every_steps=EVALUATE_EVERY_SYNCS * manifest.averaging.sync_every,
        ready_timeout_seconds=READY_SECONDS,
        checkpoints=config.checkpoints_path,
        choices=ComputeChoices.of(config),
        tell=Tell(terminal.note, tell_smaller, tell_compiling),
    )


def _meet(
    config: PeerConfig,
    manifest: RunManifest,
    source: str,
    base: Path | None,
    device: torch.device,
    group: RankGroup,
) -> Ranks:
    training = manifest.training
    check_division(training.batch_size * training.accumulation_steps, group.place.size)
    if config.shard:
        check_can_shard(training.optimizer, base_bits=config.base_bits)
    setup = RankSetup(
        manifest=manifest.to_bytes().hex(),
        data=source,
        is_own_data=config.data is not None,
        base="" if base is None else str(base.absolute()),
        base_bits=config.base_bits,
        device=config.device,
        threads=config.threads,
        is_sharded=config.shard,
        offloads=config.offload,
        checkpoints=str(config.checkpoints_path.absolute()),
        choices=asdict(ComputeChoices.of(config)),
    )
    return group.meet(setup, device)
