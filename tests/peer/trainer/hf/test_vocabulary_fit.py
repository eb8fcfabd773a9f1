"""What `peer init` tells an owner about a model of transformers."""

from __future__ import annotations

import pytest

from peer.trainer.hf.vocabulary_fit import unused_rows


@pytest.mark.parametrize(
    ("rows", "tokens", "is_told"), [(151_936, 600, True), (50_304, 50_257, False), (None, 9, False)]
)
def test_token_rows_that_no_text_uses_are_told(rows: int | None, tokens: int, is_told: bool) -> None:
    notes = unused_rows(tokens, rows)
    assert bool(notes) is is_told
    if is_told:
        assert "151,936 token rows, and the tokenizer only 600 tokens" in notes[0]
