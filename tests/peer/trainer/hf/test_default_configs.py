"""A default config is built, or gets one true sentence: docs/reference/architectures.md has all of them."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from docs.architectures import PAGE, model_types, row
from tests.kit.tiers import sampled

ONCE_REFUSED = ("qwen2_moe", "lfm2", "gemma3n_text", "mamba2", "mpt", "qwen3_5")
"""Their fields were taken for counts, hold infinity or an empty `_name_or_path`; or a head wants the part for text."""


def rows_of_the_page() -> dict[str, tuple[str, ...]]:
    lines = [line.strip("|").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if "| `" in line]
    return {cells[0].strip(" `"): tuple(cell.strip() for cell in cells) for cells in lines}


@pytest.mark.parametrize("model_type", sampled(ONCE_REFUSED, one_in=3))
def test_a_default_config_that_was_refused_is_built(model_type: str) -> None:
    assert row(model_type) == rows_of_the_page()[model_type]
    assert "builds" in row(model_type)[1]


def test_the_page_has_every_architecture_of_the_library() -> None:
    if f"transformers {version('transformers')} " in PAGE.read_text(encoding="utf-8"):
        assert list(rows_of_the_page()) == model_types()
    assert len(rows_of_the_page()) > 200


@pytest.mark.parametrize("model_type", sampled(sorted(rows_of_the_page()), one_in=120))
def test_the_page_says_what_becomes_of_a_default_config(model_type: str) -> None:
    assert row(model_type) == rows_of_the_page()[model_type]
