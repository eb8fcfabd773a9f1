"""What `peer init` tells an owner about a model of transformers."""

from __future__ import annotations

import pytest

from peer.trainer.hf.vocabulary_fit import unused_rows


@pytest.mark.parametrize(
    ("rows", "tokens", "told"),
    [
        (151_936, 600, "151,936 token rows, and the tokenizer only 600 tokens"),
        (50_304, 50_257, None),
        (None, 9, None),
        (32_000, None, "32,000 token rows, and no tokenizer.json is beside it: a run of text then reads bytes"),
        (384, None, None),
        (None, None, None),
    ],
)
def test_token_rows_that_no_text_uses_are_told(rows: int | None, tokens: int | None, told: str | None) -> None:
    notes = unused_rows(tokens, rows)
    assert told in notes[0] if told is not None else not notes
