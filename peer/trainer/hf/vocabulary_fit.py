"""Whether an architecture's token rows fit the tokenizer beside it: not too few, and not far too many."""

from __future__ import annotations

from typing import Final

from dht.errors import UsageFault
from peer.trainer.data.tokenizing import TextTokenizer

USED_SHARE: Final = 0.9
"""Of the token rows: configs round up by a few hundred, which costs little."""


def check_vocabulary(tokenizer: TextTokenizer, vocab_size: int | None) -> None:
    """Every token needs a row.

    Raises:
        UsageFault: the tokenizer has more tokens.
    """
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        raise UsageFault(
            f"{tokenizer.path} has {tokenizer.vocab_size} tokens, and the model's vocab_size is {vocab_size}; expected "
            f"no more tokens than the model has; write vocab_size = {tokenizer.vocab_size} into its config.json (given "
            "weights have their own: take the tokenizer that belongs to them), or take a smaller tokenizer."
        )


def unused_rows(num_tokens: int, vocab_size: int | None) -> tuple[str, ...]:
    """What an owner may want to change, as sentences; none where the tokenizer uses most of the model's rows."""
    if vocab_size is None or num_tokens >= USED_SHARE * vocab_size:
        return ()
    return (
        f"config.json has {vocab_size:,} token rows, and the tokenizer only {num_tokens:,} tokens: the other rows cost "
        "memory and traffic for nothing.",
    )
