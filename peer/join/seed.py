"""`peer seed`: one peer that only serves, from its flags to its goodbye. Does not import torch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import uvloop

from dht.identity.join_link import join_link
from dht.p2pd.lazy_hivemind import allow_parts_of_hivemind
from dht.records.signed_manifest import RunRecord
from peer.config.manifest import RunManifest
from peer.config.model_shapes import seed_sizes
from peer.config.peer_config import PeerConfig
from peer.join.checkpoint_disk_space import warn_of_room
from peer.join.run_introduction import rates_of, run_facts
from peer.mailbox.mailbox import Mailbox
from peer.memory.least_memory import check_memory, free_memory_bytes
from peer.observe.kept_manifest import manifest_here
from peer.panel.checklist import WAITING_FIRST
from peer.panel.return_command import keep_command
from peer.panel.terminal import Terminal
from peer.view.swarm_seen import OwnAddresses


def join_command(config: PeerConfig, addresses: Sequence[str]) -> str:
    """Return the command with which a volunteer joins at this seed; for a private run it uses an invite."""
    command = join_link(config.run_id, addresses).command
    manifest = manifest_here(config.run_record_path, config.run_id)
    if manifest is None:
        return command
    return (command if manifest.access.mode == "open" else "peer join --invite FILE") + manifest.flags_to_bring


def run_seed(config: PeerConfig, terminal: Terminal) -> int:
    """Run a peer that only serves until it is asked to leave. Return the exit code.

    Args:
        terminal: the terminal that shows the peer; it is `interruptible` already.

    Raises:
        LocalFault: a problem stopped the peer; the message explains what its owner can do.
    """
    allow_parts_of_hivemind()
    from peer.network.process.network_side import NetworkSide

    async def make_mailbox(record: RunRecord, manifest: RunManifest) -> tuple[Mailbox, str]:
        terminal.tell(run_facts(config.run_id, manifest))
        terminal.step("run", "found", is_done=True)
        is_first = not config.peers and not any(config.checkpoints_path.glob("*"))
        terminal.step("state", WAITING_FIRST if is_first else "")
        check_memory(manifest, "serve", free_memory_bytes())
        if warning := warn_of_room(manifest, config.data_dir, config.checkpoints_path, trains=False):
            terminal.note(warning)
        return Mailbox.in_process(seed_sizes(manifest)), "seed"

    async def serve() -> None:
        loop = asyncio.get_running_loop()

        def on_addresses(found: list[str]) -> None:
            listening = tuple(side.listening())
            keep_command(config, "peer seed", listening)
            terminal.tell(OwnAddresses(tuple(found), join_command(config, found), listening))

        side = NetworkSide(
            *(config, "seed", terminal.show),
            on_addresses=on_addresses,
            make_mailbox=make_mailbox,
            on_seen=terminal.tell,
        )
        terminal.step("run")
        terminal.limit_by(lambda limits: loop.call_soon_threadsafe(side.limit, rates_of(limits)))
        terminal.leave_by(lambda: loop.call_soon_threadsafe(side.leave, "asked to stop"))
        terminal.keep_folder()
        await side.run()

    # Called before the event loop, which at its end restores the current wake-up descriptor for signals.
    terminal.loaded()
    uvloop.run(serve())
    return 0
