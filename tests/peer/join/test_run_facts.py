"""In what a run counts work and loss."""

from __future__ import annotations

import pytest

from peer.config.manifest import RunManifest
from peer.join.run_facts import counted_in, loss_unit


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, ("tokens", "nats per byte")),
        ({"tokenizer": "tokenizer.json"}, ("tokens", "nats per token")),
        ({"source": "tokens:"}, ("tokens", "nats per token")),
        ({"label_field": "label", "source": "jsonl:"}, ("examples", "nats per example")),
    ],
)
def test_each_run_has_the_units_of_its_task(data: dict[str, str], expected: tuple[str, str]) -> None:
    manifest = RunManifest(name="finches")
    manifest = manifest.model_copy(update={"data": manifest.data.model_copy(update=data)})
    assert (counted_in(manifest), loss_unit(manifest)) == expected
