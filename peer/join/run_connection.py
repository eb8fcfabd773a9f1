"""A training loop's connection to its peer's network process, from the first dial to the goodbye.

Both `peer join` and `peer.join.session` use this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from averaging.outer.fragment_layout import FragmentLayout
from dht.ground.errors import Incompatible
from dht.identity.keys import Identity
from peer.checkpoint.checkpoint import saved_totals
from peer.checkpoint.checkpoint_facts import Totals
from peer.config.averaging_rules import sent_bytes_of
from peer.config.manifest import RunManifest
from peer.config.model_shapes import Shapes, layout_digest_of, layout_of, tensor_shapes
from peer.config.peer_config import PeerConfig
from peer.events.log_tail import work_in_log
from peer.events.peer_events import Event
from peer.mailbox.mailbox import Mailbox
from peer.network.process.child_start import NetworkChild
from peer.network.process.supervisor import NetworkProcess
from peer.trainer.devices.device_choice import describe_device
from peer.trainer.devices.rank_orders import ALONE, Ranks
from peer.trainer.devices.side_stream import SideStream, side_stream
from peer.trainer.loop.mailbox_link import TrainerLink
from peer.view.swarm_seen import OwnAddresses, SwarmSeen

READY_SECONDS = 600.0
"""Timeout for the first anchors: a new member downloads the whole model before it trains."""


class RunConnection:
    """Connects a training loop to the network process: call `open`, then `link`, and finally `close` or `abort`.

    Args:
        show: called with each event, from a reader thread.
        note: called with plain sentences for the owner.
        child: the network process, if it has been started already.
        hear: the callback of the same name of `NetworkProcess`.

    Attributes:
        network: the network process, for its addresses, limits and faults, and the end of the run.
        totals: totals of this peer's earlier sessions, after `link` has read them.

    Raises:
        UsageFault: the identity file cannot be used.
    """

    def __init__(
        self,
        config: PeerConfig,
        show: Callable[[Event], None],
        note: Callable[[str], None],
        child: NetworkChild | None = None,
        hear: Callable[[SwarmSeen | OwnAddresses], object] | None = None,
    ) -> None:
        self.identity = Identity.load_or_create(config.identity)
        self._config = config
        self.network = NetworkProcess(config, show, note, child, hear)
        self._mailbox: Mailbox | None = None
        self._side: SideStream | None = None
        self._is_open = False
        self.totals = Totals()

    @property
    def has_mailbox(self) -> bool:
        """Whether the network process may join the run."""
        return self._mailbox is not None

    def open(self, stop: Callable[[], bool]) -> RunManifest | None:
        """Start the network process, and return the run's signed manifest, or None if `stop` returned True first.

        Raises:
            LocalFault: the run could not be found, or the process could not start.
        """
        self.network.start()
        self._is_open = True
        record = self.network.wait_for_run(stop)
        return None if record is None else RunManifest.from_bytes(record.manifest)

    def link(
        self,
        manifest: RunManifest,
        parameters: Sequence[tuple[str, torch.Tensor]],
        device: torch.device,
        ranks: Ranks = ALONE,
        ref_device: torch.device | None = None,
        buffers: Sequence[tuple[str, torch.Tensor]] = (),
    ) -> TrainerLink:
        """Connect the module's parameters and averaged buffers, in the module's order, to the network process.

        `ranks` and `ref_device` are as in `TrainerLink`. The step count continues from this peer's newest checkpoint;
        the counts of tokens and rounds also use the end of its log.

        Raises:
            Incompatible: the parameters or buffers differ from the run's.
            LocalFault: there is no memory for the mailbox.
        """
        parts = [tensor_shapes(part) for part in (parameters, buffers)]
        layout = fitting_layout(manifest, *parts)
        totals = saved_totals(self._config.checkpoints_path, self._config.run_id, self.identity.peer_id)
        self.totals = totals
        mailbox = Mailbox.create(layout.sizes, sent_bytes_of(manifest, layout.sizes))
        self._mailbox = mailbox
        tokens, rounds = work_in_log(self._config.event_log_path, self._config.run_id, self.identity.peer_id)
        mailbox.trainer.tokens = max(totals.tokens, tokens)
        mailbox.network.rounds_contributed = max(totals.rounds_contributed, rounds)
        is_here = ref_device in (None, device) and not ranks.is_sharded
        self._side = side_stream(device, torch.from_numpy(mailbox.slot_memory)) if is_here else None
        link = TrainerLink(
            [*parameters, *buffers],
            layout,
            mailbox,
            sync_every=manifest.averaging.sync_every,
            mode=manifest.averaging.mode,
            start_inner_step=totals.inner_steps,
            ranks=ranks,
            ref_device=ref_device,
            side=self._side,
        )
        self.network.give_mailbox(mailbox, describe_device(device, ranks.size))
        return link

    def close(self, reason: str, idle: Callable[[], None] = lambda: None) -> None:
        """Leave the run and wait until the network process has ended; meanwhile call `idle`.

        Raises:
            LocalFault: the network process had failed before.
        """
        if self._is_open:
            self.network.leave(reason)
            self.network.close(idle)
        self._close_side()
        if self._mailbox is not None:
            self._mailbox.close()
        self.network.check()

    def abort(self) -> None:
        """End the network process at once."""
        self.network.abort()
        self._close_side()

    def _close_side(self) -> None:
        if self._side is not None:
            self._side.close()
            self._side = None


def fitting_layout(
    manifest: RunManifest,
    shapes: Shapes,
    buffer_shapes: Shapes | None = None,
) -> FragmentLayout:
    """Return the fragments of a module's parameters and averaged buffers, after a check against the manifest.

    Raises:
        Incompatible: the number, names, shapes or order of the parameters or buffers differ from the run's.
    """
    layout = layout_of(manifest, shapes, buffer_shapes)
    expected = manifest.model.num_parameters
    buffers = buffer_shapes or []
    num_buffer_values = sum(math.prod(shape) for _, shape in buffers)
    if num_buffer_values != (manifest.model.num_buffer_values or 0):
        raise Incompatible(
            f"this module has {num_buffer_values} values in {len(buffers)} buffers of real numbers; the run "
            f"expects {manifest.model.num_buffer_values or 0}; build the module as the run's owner does"
        )
    if expected is not None and layout.num_values - num_buffer_values != expected:
        raise Incompatible(
            f"this module has {layout.num_values - num_buffer_values} trained elements in {len(shapes)} parameters; "
            f"the run expects {expected}; build the module as the run's owner does"
        )
    if layout.digest != layout_digest_of(manifest):
        prefixes = {name.partition(".")[0] for name, _ in [*shapes, *buffers]}
        if len(prefixes) == 1 and _is_wrapped(manifest, shapes, buffers):
            raise Incompatible(
                f"all names in this module begin with {prefixes.pop()!r}, as in a wrapper, and the run's names do "
                "not; expected the module without its wrapper; pass the bare module to join()"
            )
        first = ", ".join(f"{name} {list(shape)}" for name, shape in shapes[:3])
        raise Incompatible(
            f"this module begins with {first} (layout {layout.digest.hex()[:16]}); the run's parameters have different "
            f"names, shapes or order (layout {layout_digest_of(manifest).hex()[:16]}); build the module as the run's "
            "owner does"
        )
    return layout


def _is_wrapped(manifest: RunManifest, shapes: Shapes, buffer_shapes: Shapes) -> bool:
    """Return whether the names match the run's names after their first part is removed."""
    parts = [[(name.partition(".")[2], shape) for name, shape in part] for part in (shapes, buffer_shapes)]
    return layout_of(manifest, *parts).digest == layout_digest_of(manifest)
