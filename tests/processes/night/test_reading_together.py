"""Real `peer join` processes share the blocks of an epoch."""

from __future__ import annotations

import sys
from pathlib import Path

from peer.data_division.block_order import BlockOrder
from peer.trainer.data.corpus import open_corpus
from tests.kit.processes.process_swarm import TINY_RUN, PeerProcess, ProcessSwarm, process_swarm, wait_until

RECORDER = """
import runpy, sys
from peer.data_division.block_order import BlockOrder

record, plain = open(sys.argv.pop(1), "a", 1), BlockOrder.next

def recorded(self, *given):
    positions = plain(self, *given)
    if positions is not None:
        print(self.state()["epoch"], *positions.tolist(), file=record)
    return positions

BlockOrder.next = recorded
program = sys.argv[3]
sys.argv[1:4] = []  # the interpreter, `-m` and the program
runpy.run_module(program, run_name="__main__", alter_sys=True)
"""
"""Runs the command behind it, and writes down the blocks that its loop is given: a batch a line, the epoch first."""


def reader(swarm: ProcessSwarm, name: str, text: Path, *peers: PeerProcess) -> PeerProcess:
    wrapper = [sys.executable, "-c", RECORDER, str(swarm.folder / f"{name}.read")]
    addresses = [peer.address for peer in peers]
    return swarm.start(name, "--data", f"text:{text}", peers=addresses, has_record=True, wrapper=wrapper)


def batches(swarm: ProcessSwarm, name: str) -> list[list[int]]:
    path = swarm.folder / f"{name}.read"
    lines = path.read_text().splitlines() if path.exists() else []
    return [list(map(int, line.split())) for line in lines]


def test_two_peers_read_each_block_of_an_epoch_once() -> None:
    run = TINY_RUN.replace("announce_seconds = 2.0", "announce_seconds = 1.0")
    with process_swarm(run) as swarm:
        text = swarm.folder / "shared.txt"
        text.write_text(swarm.text.read_text()[-150_000:])
        first = reader(swarm, "first", text)
        first.wait_joined()
        second = reader(swarm, "second", text, first)
        second.wait_joined()
        names = ("first", "second")
        wait_until(lambda: all(batches(swarm, name)[-1:] >= [[1]] for name in names), "both begin the next epoch")

        training = open_corpus(f"text:{text}", vocab_size=256, context=32, held_out_fraction=0.05).training
        alone, everything = BlockOrder(swarm.run.manifest.seed, "anybody"), set()
        while (positions := alone.next(1, 32, training)) is not None and alone.state()["epoch"] == 0:
            everything |= set(positions.tolist())
        read = [[block for epoch, *blocks in batches(swarm, name) if epoch == 0 for block in blocks] for name in names]
        assert all(len(blocks) > len(everything) // 10 for blocks in read), "both of them read"
        assert [len(blocks) - len(set(blocks)) for blocks in read] == [0, 0]
        of_first, of_second = map(set, read)
        assert of_first | of_second <= everything
        # In its share, away from where others come and take over, nobody reads what another has read.
        share = read[1]
        assert not of_first & set(share[len(share) // 4 : len(share) // 2])
        # This epoch lasts some seconds, and what others know of it is a second old or more.
        assert len(of_first & of_second) <= 0.1 * len(everything)
        assert len(of_first | of_second) >= 0.98 * len(everything)
        assert first.is_alive
        assert second.is_alive
