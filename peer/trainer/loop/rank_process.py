"""A process of a peer with several devices, other than the first; it executes the orders of rank 0.

It has no network, no mailbox, and makes no decisions. It has the same model and data as rank 0, its own share of every
step, and its own portion of the parameters. See `peer/trainer/devices/rank_orders.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from dht.ground.errors import LocalFault
from peer.child_process import end_with_parent
from peer.config.data_source import EVALUATION_BATCHES
from peer.config.manifest import RunManifest
from peer.config.model_shapes import averaged_parts, layout_of, tensor_shapes
from peer.console.plain_output import make_plain
from peer.trainer.computing.compute_choices import ComputeChoices, Tell
from peer.trainer.computing.memory_exceptions import memory_fault
from peer.trainer.computing.recompute_and_attention import prepare_module
from peer.trainer.data.corpus import open_run_corpus
from peer.trainer.devices.device_choice import device_of
from peer.trainer.devices.portion import Portion
from peer.trainer.devices.rank_orders import Order, OrderKind, Ranks, lost_rank
from peer.trainer.devices.rank_rendezvous import join_store, make_ranks, read_setup
from peer.trainer.devices.sharding import shard
from peer.trainer.devices.torchrun import Place
from peer.trainer.hf.architecture import Compressed
from peer.trainer.hf.run_model import build_run_model
from peer.trainer.loop.checkpoint_portion import PortionKeeper
from peer.trainer.loop.inner_step import InnerStep


def follow(place: Place) -> int:
    """Execute orders until rank 0 orders the end. Return the exit code.

    Raises:
        LocalFault: rank 0 or another process has ended, or this process cannot do its part.
    """
    for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        # A terminal's Ctrl+C reaches every process; rank 0 decides how to react.
        signal.signal(number, signal.SIG_IGN)
    store = join_store(place)
    setup = read_setup(store)
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    device = device_of(setup.device, place)
    ranks = make_ranks(place, store, device, setup.is_sharded)
    manifest = RunManifest.from_bytes(bytes.fromhex(setup.manifest))
    # Rank 0 has checked this setting.
    compressed = None if setup.base_bits == "full" else Compressed(int(setup.base_bits), device)
    model = build_run_model(manifest, Path(setup.base) if setup.base else None, compressed=compressed)
    choices = ComputeChoices(**setup.choices)
    prepare_module(model, choices)
    model = shard(model, device, offloads=setup.offloads) if setup.is_sharded else model.to(device)
    corpus = open_run_corpus(manifest, setup.data, Path(setup.checkpoints).parent, is_own=setup.is_own_data)
    parts = averaged_parts(model, manifest)
    layout = layout_of(manifest, *map(tensor_shapes, parts))
    inner = InnerStep(model, corpus, manifest.training, device, ranks, choices, Tell(note=_tell))
    portion = Portion(dict([*parts[0], *parts[1]]), layout, torch.device("cpu") if setup.offloads else None)
    keeper = PortionKeeper(Path(setup.checkpoints), portion, model, [inner.optimizer], ranks)
    follower = Follower(ranks, portion, inner, keeper)
    while follower.obey(ranks.next_order()):
        pass
    return 0


@dataclass(frozen=True, slots=True)
class Follower:
    """Executes orders in a rank other than 0."""

    ranks: Ranks
    portion: Portion
    inner: InnerStep
    keeper: PortionKeeper

    def obey(self, order: Order) -> bool:
        """Execute one order; return False for the last order."""
        match order.kind:
            case OrderKind.STEP:
                self.inner.step(self.ranks.positions(order), int(order.numbers[1]), order.numbers[2])
            case OrderKind.MEASURE:
                self.portion.put_aside()
            case OrderKind.LOSS:
                if order.numbers[0]:
                    self.inner.evaluate(EVALUATION_BATCHES)
                self.portion.take_back()
            case OrderKind.KEEP:
                self.keeper.send_parts()
            case OrderKind.RESTORE:
                self.keeper.restore(int(order.numbers[0]), len(self.portion.layout.fragments))
            case OrderKind.END:
                return False
            case _:
                self.ranks.obey(self.portion, order)
        return True


def main() -> int:
    """Entry point: `python -m peer.trainer.loop.rank_process PLACE`, PLACE in JSON; ends when its standard input
    closes.
    """
    sys.stderr = make_plain(sys.stderr)
    end_with_parent(sys.stdin.buffer, lambda: os._exit(1))  # a process that waits for a GPU could not clean up
    try:
        return follow(Place(**json.loads(sys.argv[1])))
    except (LocalFault, RuntimeError) as error:
        if lost_rank(error) is not None:
            # Rank 0 reports the loss, unless rank 0 itself was lost.
            return 1
        fault = error if isinstance(error, LocalFault) else memory_fault(error)
        if fault is None:
            raise
        print(f"peer: {fault}", file=sys.stderr)
        return fault.exit_code


def _tell(sentence: str) -> None:
    print(f"peer: {sentence}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
