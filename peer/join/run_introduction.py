"""Facts about the run that `peer join` and `peer seed` show in their terminal, and rate limits for the host."""

from __future__ import annotations

from dht.streams.upload_and_download_limits import RateLimits
from peer.config.manifest import RunManifest
from peer.panel.updates import LineLimits, RunFacts


def run_facts(run_id: str, manifest: RunManifest) -> RunFacts:
    """Return the manifest's facts for people."""
    return RunFacts(
        run_id,
        manifest.training.schedule.tokens,
        page=(manifest.page_address or "").rstrip("/"),
        is_private=manifest.access.mode != "open",
        loss_unit=manifest.loss_unit,
        flags_to_bring=manifest.flags_to_bring,
    )


def trained_in(manifest: RunManifest) -> str:
    """Return a phrase for the trained values: all parameters, or only the values of an adapter."""
    return "parameters" if manifest.model.adapter is None else "values of a LoRA adapter"


def rates_of(limits: LineLimits) -> RateLimits:
    """Return the limits in bits per second."""
    return RateLimits(*(None if mbit is None else 1e6 * mbit for mbit in (limits.up_mbit, limits.down_mbit)))
