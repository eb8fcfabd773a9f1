"""A run's tokenizer as a transformers tokenizer, for libraries that require one; a limited child does its work."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizer

from peer.trainer.data.tokenizing import OpenTokenizer


class LimitedTokenizer(PreTrainedTokenizer):
    """Encodes and decodes with `tokenizer`, without special tokens around a text, as in training.

    In this class a token's name is its number in `<|token ...|>`. Texts begin after the token that ends documents.
    """

    def __init__(self, tokenizer: OpenTokenizer) -> None:
        self._tokenizer = tokenizer
        end = _name(tokenizer.facts.eos)
        super().__init__(bos_token=end, eos_token=end, pad_token=end, special_tokens_pattern="none")  # type: ignore[no-untyped-call]

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.facts.vocab_size

    def get_vocab(self) -> dict[str, int]:
        return {_name(token): token for token in range(self.vocab_size)}

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return self._tokenizer.decode([*map(_token, tokens)]) if tokens else ""

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return [*map(_name, self._tokenizer.encode([text])[0])]

    def _convert_token_to_id(self, token: str) -> int:
        return _token(token)

    def _convert_id_to_token(self, index: int) -> str:
        return _name(index)


def _name(token: int) -> str:
    return f"<|token {token}|>"


def _token(name: str) -> int:
    return int(name.removeprefix("<|token ").removesuffix("|>"))
