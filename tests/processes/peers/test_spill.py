"""A real peer whose past rounds lie on the disk: checkpoints read them, and a killed process leaves nothing."""

from __future__ import annotations

import os
import signal

from peer.events.peer_events import CheckpointSaved, NetworkRestarted
from tests.kit.processes.process_swarm import TINY_RUN, PeerProcess, process_swarm, wait_until

RUN = TINY_RUN.replace("num_layers = 1", "num_layers = 4").replace("d_model = 32", "d_model = 256")
RUN = RUN.replace("sync_every = 10", 'sync_every = 10\ncombine = "centered_clip"')
"""Its two fragments have 1.7 million values: a round leaves more than a MiB, which auditors may ask for."""


def test_past_rounds_lie_in_files_without_a_name() -> None:
    with process_swarm(RUN) as swarm:
        peer = swarm.start("lone", "--checkpoint-minutes", "0.05", has_record=True)
        peer.wait_joined()
        folder = swarm.folder / "lone"

        def num_mapped(peer: PeerProcess) -> int:
            with open(f"/proc/{peer.network().pid}/maps") as maps:
                return sum(str(folder) in line and "(deleted)" in line for line in maps)

        wait_until(lambda: num_mapped(peer) >= 4, "two rounds of two fragments are on the disk")
        peer.wait_for(CheckpointSaved, lambda event: min(event.versions) >= 2)
        mark = peer.mark()
        os.kill(peer.network().pid, signal.SIGKILL)
        peer.wait_for(NetworkRestarted, after=mark)
        peer.wait_for(CheckpointSaved, lambda event: min(event.versions) >= 6, after=mark)
        wait_until(lambda: num_mapped(peer) >= 4, "the new process puts rounds there, too")
        assert num_mapped(peer) <= 2 * 5, "rounds that nobody may ask for stay on the disk"
        names = [path.name for path in folder.iterdir()]
        assert not [name for name in names if name.startswith("past-rounds")], names
        peer.process.send_signal(signal.SIGTERM)
        assert peer.wait_end() == 0
        assert "Traceback" not in peer.stderr
        assert "past rounds stay in memory" not in peer.stderr
