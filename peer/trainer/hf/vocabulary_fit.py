"""Whether an architecture's token rows fit the tokenizer beside it, or the bytes that a run without one reads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dht.ground.errors import UsageFault
from peer.trainer.data.loaded_tokenizer import TOKENIZER_NAME
from peer.trainer.data.tokenizing import TextTokenizer

USED_SHARE: Final = 0.9
"""Of the token rows: configs round up by a few hundred, which costs little."""
NUM_BYTE_ROWS: Final = 512
"""A model of bytes has 256 rows and a few for special tokens; some round up to a power of two."""
OTHER_FORMS: Final = (
    *("*.model", "*.tiktoken", "*.spm", "*.vocab", "vocab.json", "vocab.txt", "merges.txt"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)
"""Files of tokenizers that slow libraries read, the words themselves before what is said about them."""


def check_tokenizer_form(folder: Path, hub_name: str | None) -> None:
    """Refuse a model whose folder has a tokenizer in another form than tokenizer.json.

    Args:
        hub_name: of a model that was downloaded into `folder`; None: it lies there.

    Raises:
        UsageFault: its run would read bytes, which the model never saw.
    """
    if not folder.is_dir() or (folder / TOKENIZER_NAME).exists():
        return
    others = (path.name for pattern in OTHER_FORMS for path in sorted(folder.glob(pattern)))
    if (other := next(others, None)) is not None:
        where = "DIR" if hub_name is not None else str(folder)
        name, _, revision = (hub_name or "").partition("@")
        first = f"download it with `hf download {name} --revision {revision} --local-dir DIR`, and " if name else ""
        raise UsageFault(
            f"{folder if hub_name is None else hub_name} has {other} and no {TOKENIZER_NAME}, so the run would read "
            f"bytes instead of the model's tokens; expected {TOKENIZER_NAME}; {first}make it with transformers (and "
            f"sentencepiece, for a *.model file): AutoTokenizer.from_pretrained({where!r}).save_pretrained({where!r})"
        )


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


def unused_rows(num_tokens: int | None, vocab_size: int | None) -> tuple[str, ...]:
    """What an owner may want to change, as sentences; none where the run's text uses most of the model's rows.

    Args:
        num_tokens: of the tokenizer; None: there is none.
        vocab_size: rows of the model; None: it has none.
    """
    if vocab_size is None:
        return ()
    if num_tokens is None:
        if vocab_size <= NUM_BYTE_ROWS:
            return ()
        return (
            f"config.json has {vocab_size:,} token rows, and no {TOKENIZER_NAME} is beside it: a run of text then "
            "reads bytes, which are 256 tokens, and the other rows cost memory and traffic for nothing.",
        )
    if num_tokens >= USED_SHARE * vocab_size:
        return ()
    return (
        f"config.json has {vocab_size:,} token rows, and the tokenizer only {num_tokens:,} tokens: the other "
        "rows cost memory and traffic for nothing.",
    )
