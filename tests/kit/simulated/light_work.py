"""What simulated peers learn where another thing is looked at: its inner steps cost a tenth of the built-in model's."""

from __future__ import annotations

from tests.simulator.scenarios.spec import WorkloadSection

LIGHT_WORK = WorkloadSection(num_values=200, tokens_per_step=64, learning_rate=0.05, noise=0.2)
"""As many tokens in a step as `tiny_manifest` has; the loss halves in some twenty steps of one peer."""
