"""`peer join` and `peer seed`: one volunteer from flags to goodbye."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import torch

from dht.errors import Incompatible
from dht.hivemind_parts import allow_parts_of_hivemind
from dht.records import RunRecord
from peer.config import PeerConfig
from peer.connection import READY_SECONDS, Connection, network_spec
from peer.data import open_corpus
from peer.layouts import seed_sizes
from peer.mailbox import Mailbox
from peer.manifest import RunManifest
from peer.model import build_model
from peer.owner import Owner
from peer.trainer import Trainer, select_device

EVALUATE_EVERY_SYNCS = 4
"""Held-out loss once per so many intervals of H steps: often enough for a curve, a percent or two of the time."""


def run_peer(config: PeerConfig, seed_only: bool) -> int:
    """Run one peer until it is asked to leave. Returns the exit code.

    Raises:
        LocalFault: what stopped it, with what its owner can do.
    """
    owner = Owner(config)
    with _figures_shown(config, owner), owner.interruptible():
        if seed_only:
            return _run_seed(config, owner)
        return _run_trainer(config, owner)


@contextlib.contextmanager
def _figures_shown(config: PeerConfig, owner: Owner) -> Iterator[None]:
    if config.metrics_port is None:
        yield
        return
    from peer.metrics_port import PeerMetrics, serving_metrics

    metrics = PeerMetrics()
    with serving_metrics(metrics, config.metrics_host, config.metrics_port) as port:
        owner.on_event = metrics.note
        owner.note(f"figures for Prometheus at http://{config.metrics_host}:{port}/metrics")
        yield


def _run_trainer(config: PeerConfig, owner: Owner) -> int:
    device = select_device(config.device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    connection = Connection(config, owner.show, owner.note)
    trainer: Trainer | None = None

    def stop() -> bool:
        connection.check()
        return owner.stop_asked() or connection.run_has_ended

    try:
        manifest = connection.open(owner.stop_asked)
        if manifest is not None:
            trainer = _build_trainer(config, manifest, connection, device)
            _wait_for_start(manifest.starts_at, owner, stop)
            trainer.run(stop, config.max_steps)
        reason = "asked to stop" if owner.stop_asked() else "its steps are done"
        if connection.run_has_ended:
            reason = "the run has ended"
        connection.close(reason, *([] if trainer is None else [trainer.training.idle]))
    except BaseException:
        connection.abort()
        raise
    return 0


def _wait_for_start(starts_at: float | None, owner: Owner, stop: Callable[[], bool]) -> None:
    """Until the manifest's starting time nobody trains; this peer is a member meanwhile."""
    if starts_at is not None and time.time() < starts_at:
        owner.note(f"this run starts to train at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(starts_at))}")
        while time.time() < starts_at and not stop():
            time.sleep(min(0.5, max(0.0, starts_at - time.time())))


def _build_trainer(config: PeerConfig, manifest: RunManifest, connection: Connection, device: torch.device) -> Trainer:
    if manifest.model.kind != "gpt":
        raise Incompatible(
            f"run {config.run_id} trains a model from its owner's own code (kind {manifest.model.kind!r}); expected "
            "the built-in GPT; join it from that code with peer.session.join"
        )
    model = build_model(manifest.model, manifest.seed).to(device)
    corpus = open_corpus(
        config.data or manifest.data.source,
        vocab_size=manifest.model.vocab_size,
        context=manifest.model.context,
        held_out_fraction=manifest.data.held_out_fraction,
    )
    link = connection.link(manifest, list(model.named_parameters()), device)
    return Trainer(
        model,
        corpus,
        manifest.training,
        link,
        seed=manifest.seed,
        peer_id=connection.identity.peer_id,
        device=device,
        evaluate_every_steps=EVALUATE_EVERY_SYNCS * manifest.averaging.sync_every,
        evaluation_batches=manifest.data.evaluation_batches,
        ready_timeout_seconds=READY_SECONDS,
        checkpoints=config.checkpoints_path,
        first_read=connection.totals.reads,
    )


def _run_seed(config: PeerConfig, owner: Owner) -> int:
    # A trainer's process has no use for it: its network side is another process.
    allow_parts_of_hivemind()
    from peer.network_side import NetworkSide

    async def make_mailbox(record: RunRecord, manifest: RunManifest) -> tuple[Mailbox, str]:
        return Mailbox.in_process(seed_sizes(manifest)), "seed"

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        spec = network_spec(config, "seed")
        side = NetworkSide(
            spec, owner.show, lambda addresses: owner.note("listening on " + "  ".join(addresses)), make_mailbox
        )
        owner.on_stop = lambda: loop.call_soon_threadsafe(side.leave, "asked to stop")
        await side.run()

    asyncio.run(serve())
    return 0
