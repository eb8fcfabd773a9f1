"""What a run says to people: the unit of its loss, what each volunteer brings, its steps."""

from __future__ import annotations

import pytest

from peer.config.manifest import RunManifest
from peer.config.model_section import AdapterSection, InitSection
from peer.join.run_introduction import run_facts, trained_in


@pytest.mark.parametrize(
    ("source", "weights", "expected"),
    [
        ("stdlib:", None, ""),
        ("hf:org/books@main", None, ""),
        ("text:", None, " --data text:PATH"),
        ("tokens:", InitSection(source="folder", digest="ab" * 32, num_bytes=10), " --data tokens:PATH --base DIR"),
    ],
)
def test_what_each_brings_is_named_in_the_command(source: str, weights: InitSection | None, expected: str) -> None:
    manifest = RunManifest(name="finches")
    manifest = manifest.model_copy(
        update={
            "data": manifest.data.model_copy(update={"source": source}),
            "model": manifest.model.model_copy(update={"init": weights}),
        }
    )
    assert manifest.flags_to_bring == run_facts("finches", manifest).flags_to_bring == expected


def test_an_adapter_is_not_told_as_the_whole_model() -> None:
    manifest = RunManifest(name="finches")
    assert trained_in(manifest) == "parameters"
    adapter = AdapterSection(rank=4, targets=("q_proj",))
    manifest = manifest.model_copy(update={"model": manifest.model.model_copy(update={"adapter": adapter})})
    assert trained_in(manifest) == "values of a LoRA adapter"
