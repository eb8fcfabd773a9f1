"""Mode sync keeps its promise to the last bit: equal anchors are equal parameters, however many rounds there were."""

from __future__ import annotations

import pytest

from peer.mailbox.slots import Inbox, MergeKind
from tests.kit.tiers import sampled
from tests.simulator import checks
from tests.simulator.scenarios.spec import LIGHT_WORK, SimulationSpec, plan_churn, tiny_manifest
from tests.simulator.simulation import simulate


@pytest.mark.parametrize(("churn", "codec"), sampled([(0.0, "fp32"), (0.0, "int4"), (0.5, "fp32"), (0.5, "int4")], 3))
def test_live_parameters_do_not_drift_from_the_anchors(monkeypatch, codec, churn):
    monkeypatch.setattr(checks, "TOLERANCE", 0.0)
    manifest = tiny_manifest(3, mode="sync", codec=codec, sync_every=2)
    spec = SimulationSpec(4, 60, 3, manifest, plan_churn(4, 29.0, churn, 3), workload=LIGHT_WORK)
    result = simulate(spec)
    assert result.violations == ()
    assert min(result.versions) >= 5


def test_only_whole_starting_points_reach_the_trainer(monkeypatch):
    kinds = set()
    post = Inbox.post

    def note(inbox, draft, kind, **options):
        kinds.add(kind)
        post(inbox, draft, kind, **options)

    monkeypatch.setattr(Inbox, "post", note)
    manifest = tiny_manifest(1, mode="sync", sync_every=4)
    result = simulate(SimulationSpec(2, 40, 1, manifest, workload=LIGHT_WORK))
    assert result.violations == ()
    assert kinds == {MergeKind.SET, MergeKind.REBASE}
