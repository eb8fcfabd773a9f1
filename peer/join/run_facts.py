"""What `peer join` and `peer seed` tell their terminal about the run, and what its owner's limits mean for the host."""

from __future__ import annotations

from dht.streams.pacing import RateLimits
from peer.config.manifest import RunManifest
from peer.panel.scene.updates import LineLimits, RunFacts


def run_facts(run_id: str, manifest: RunManifest) -> RunFacts:
    """What the manifest says to people."""
    goal = manifest.goal
    return RunFacts(
        run_id,
        manifest.organiser,
        goal.tokens,
        goal.until,
        goal.loss,
        page=(manifest.page_address or "").rstrip("/"),
        is_private=manifest.access.mode != "open",
        counted=manifest.counted,
        loss_unit=manifest.loss_unit,
    )


def rates_of(limits: LineLimits) -> RateLimits:
    """The same in bits per second."""
    return RateLimits(*(None if mbit is None else 1e6 * mbit for mbit in (limits.up_mbit, limits.down_mbit)))
