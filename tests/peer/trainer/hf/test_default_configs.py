"""The default config of each architecture makes a run, or is one true sentence: docs/reference/architectures.md."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from docs.architectures import BUILDS, PAGE, cells_of, cells_of_the_page, model_types, page
from tests.kit.tiers import sampled

ONCE_REFUSED = ["qwen2_moe", "lfm2", "gemma3n_text", "mamba2", "mpt", "jetmoe"]
"""Their fields were taken for counts, hold infinity or an empty `_name_or_path`."""
BY_DAY_FIRST = [*ONCE_REFUSED, *sorted(cells_of_the_page().keys() - {*ONCE_REFUSED})]


def test_the_page_has_every_architecture_of_the_library() -> None:
    cells = cells_of_the_page()
    assert all(BUILDS in cells[model_type] for model_type in ONCE_REFUSED)
    if f"transformers {version('transformers')} " in PAGE.read_text(encoding="utf-8"):
        assert sorted(cells) == model_types()
        assert page(cells) == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("model_type", sampled(BY_DAY_FIRST, one_in=120))
def test_the_page_shows_what_becomes_of_a_default_config(model_type: str) -> None:
    assert cells_of(model_type) == cells_of_the_page()[model_type]
