"""Runs the `tokenizers` library on a tokenizer.json, only in processes with limits (`peer.limited_child`).

The library is written in Rust: it panics with a BaseException, aborts the process when it cannot allocate memory, and
never finishes with some patterns in a tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dht.ground.errors import UsageFault
from peer.optional_libraries import needing
from peer.trainer.text.source_files import TokenArray, TokenType

CONFIG_NAMES = ("tokenizer_config.json", "special_tokens_map.json")

END_OF_TEXT = "<|endoftext|>"
"""The token that ends documents in tokenizers made by this software; token 0."""
USUAL_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<|endofdocument|>", "[SEP]")
USUAL_MASKS = ("[MASK]", "<mask>")
"""Names of the mask token in the tokenizers of BERT and RoBERTa."""


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A tokenizer loaded in this process; `eos` ends a document, and `vocab_size` is the largest token plus 1."""

    eos: int
    vocab_size: int
    _library: Any

    @property
    def dtype(self) -> TokenType:
        """The dtype in which tokens are stored: uint16 where they fit."""
        return token_dtype(self.vocab_size)

    @property
    def special(self) -> dict[str, int]:
        """The token numbers of the `USUAL_MASKS` that the tokenizer has."""
        known = {text: self._library.token_to_id(text) for text in USUAL_MASKS}
        return {text: number for text, number in known.items() if number is not None}

    def encode(self, texts: Sequence[str]) -> list[TokenArray]:
        """Return the tokens of each text, without the special tokens that a tokenizer would add."""
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, self.dtype) for encoding in encodings]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, including special tokens."""
        text: str = self._library.decode(list(tokens), skip_special_tokens=False)
        return text


def token_dtype(vocab_size: int) -> TokenType:
    """Return the dtype in which tokens below `vocab_size` are stored."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def loaded(content: bytes, file: str, end: str | None) -> LoadedTokenizer:
    """Load the bytes of a tokenizer.json.

    Args:
        file: path of the file, for error messages.
        end: the special token that ends documents; None: one of the typical ones.

    Raises:
        UsageFault: the bytes are not a tokenizer, the token that ends documents is unknown, or the library is missing.
    """
    with needing("text to tokens", "tokenizers", "hf"):
        import tokenizers
    library: Any = tokenizers
    try:
        tokenizer = library.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises no more specific class
        raise UsageFault(
            f"{file} is not a tokenizer ({str(error)[:200]}); expected a tokenizer.json of the tokenizers library"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    vocab: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    ends = [end] if end is not None else [text for text in USUAL_ENDS if text in vocab]
    if not ends:
        raise UsageFault(
            f"{file} does not specify the token that ends a document; expected a {CONFIG_NAMES[0]} beside it; write "
            '{"eos_token": "TOKEN"} into it, with a token from its vocabulary; `peer data prepare` also accepts --eos '
            "TOKEN"
        )
    if ends[0] not in vocab:
        raise UsageFault(f"{file} has no token {end!r} that could end a document; expected a token of this file")
    return LoadedTokenizer(vocab[ends[0]], max(vocab.values()) + 1, tokenizer)


def prepare(setup: dict[str, Any]) -> Any:
    """Answer the questions of `peer.trainer.data.tokenizing.OpenTokenizer`; the first question's body is
    tokenizer.json.
    """
    tokenizer: LoadedTokenizer | None = None

    def answer(question: dict[str, Any], body: bytes) -> dict[str, Any]:
        nonlocal tokenizer
        if tokenizer is None:
            tokenizer = loaded(body, setup["file"], setup["end"])
            return {"eos": tokenizer.eos, "vocab_size": tokenizer.vocab_size, "special": tokenizer.special}
        if "texts" in question:
            return {"tokens": [tokens.tolist() for tokens in tokenizer.encode(question["texts"])]}
        return {"text": tokenizer.decode(question["tokens"])}

    return answer
