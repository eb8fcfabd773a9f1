"""Text to tokens with a tokenizer.json of the `tokenizers` library, and a new one from text.

The library is loaded when something is tokenized, not with this module.
"""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3
import numpy as np

from dht.errors import LocalFault, UsageFault, reading, writing
from dht.regular_files import read_regular
from peer.optional_libraries import needing
from peer.trainer.data.shards import write_new
from peer.trainer.text.source_files import TokenArray, TokenType

TOKENIZER_NAME = "tokenizer.json"
CONFIG_NAMES = ("tokenizer_config.json", "special_tokens_map.json")
MAX_TOKENIZER_BYTES = 64 << 20
"""The largest tokenizers take 35 MB as JSON."""

END_OF_TEXT = "<|endoftext|>"
"""What a tokenizer that is made here ends documents with; token 0."""
USUAL_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<|endofdocument|>", "[SEP]")


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A tokenizer and what a run must agree on about it.

    Attributes:
        digest: BLAKE3 of tokenizer.json, 64 hexadecimal digits.
        eos: the token that ends a document.
        vocab_size: one more than the largest token.
    """

    path: Path
    digest: str
    eos: int
    vocab_size: int
    _library: Any

    @property
    def tokens(self) -> dict[str, int]:
        """Every token's text and number, special ones included."""
        found: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        return found

    @property
    def dtype(self) -> TokenType:
        """How its tokens are stored: uint16 where they fit."""
        return np.dtype("<u2") if self.vocab_size <= 1 << 16 else np.dtype("<u4")

    def encode(self, texts: Sequence[str]) -> list[TokenArray]:
        """Tokens of each text, without those that a tokenizer would put around it."""
        found = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, self.dtype) for one in found]

    def encode_whole(self, texts: Sequence[str], max_tokens: int) -> list[TokenArray]:
        """Tokens of each text with those that the tokenizer puts around it, cut to `max_tokens`; at least one each."""
        self._library.enable_truncation(max_tokens)
        try:
            found = self._library.encode_batch_fast(list(texts), add_special_tokens=True)
        finally:
            self._library.no_truncation()
        return [np.array(one.ids or [self.eos], self.dtype) for one in found]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones included."""
        text: str = self._library.decode(list(tokens), skip_special_tokens=False)
        return text


def load_tokenizer(path: Path, end: str | None = None) -> TextTokenizer:
    """Read a tokenizer.json, or the one in a folder.

    Args:
        end: the special token that ends documents; None: the one that the files beside it name, or a usual one.

    Raises:
        UsageFault: there is none, it cannot be used, or nothing says how documents end.
        LocalFault: the library is missing.
    """
    file = path / TOKENIZER_NAME if path.is_dir() else path
    with reading(file, f"a {TOKENIZER_NAME} of the tokenizers library, or a folder with one (`peer data tokenizer`)"):
        content = read_regular(file, MAX_TOKENIZER_BYTES)
    library = _library()
    try:
        loaded = library.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises no narrower class
        raise UsageFault(
            f"{file} is no tokenizer ({str(error)[:200]}); expected a {TOKENIZER_NAME} of the tokenizers library"
        ) from error
    loaded.no_truncation()
    loaded.no_padding()
    vocab: dict[str, int] = loaded.get_vocab(with_added_tokens=True)
    named = end or next(named_ends(file.parent), None)
    chosen = [named] if named is not None else [each for each in USUAL_ENDS if each in vocab]
    if not chosen or chosen[0] not in vocab:
        if named is not None:
            raise UsageFault(f"{file} has no token {named!r} to end a document with; expected one of its own")
        raise UsageFault(
            f"nothing says which token of {file} ends a document; expected a {CONFIG_NAMES[0]} beside it; write "
            '{"eos_token": "TOKEN"} into it, with a token of its own; `peer data prepare` also takes --eos TOKEN'
        )
    digest = blake3.blake3(content).hexdigest()
    return TextTokenizer(file, digest, vocab[chosen[0]], max(vocab.values()) + 1, loaded)


def make_tokenizer(texts: Iterable[str], vocab_size: int, folder: Path) -> TextTokenizer:
    """Train a byte-level BPE (arXiv 1508.07909, on bytes as in GPT-2) and write it as transformers reads it.

    Raises:
        UsageFault: the vocabulary is too small, there is no text, or the folder has a tokenizer.
        LocalFault: the library is missing, or the folder cannot be written.
    """
    library = _library()
    if vocab_size < 257:
        raise UsageFault(f"--vocab-size is {vocab_size}; expected at least 257: every byte, and the end of a document")
    if (folder / TOKENIZER_NAME).exists():
        raise UsageFault(f"{folder / TOKENIZER_NAME} is there already; expected a new folder; choose another --out")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = iter(texts)
    if (first := next(text, None)) is None:
        raise UsageFault("there is no text in these files; expected some to learn words from")
    _interruptibly(lambda: tokenizer.train_from_iterator(itertools.chain([first], text), trainer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    is_new = not folder.exists()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        write_new(folder / CONFIG_NAMES[0], (json.dumps(config, indent=2) + "\n").encode())
        write_new(folder / TOKENIZER_NAME, tokenizer.to_str(pretty=True).encode())  # the last one: with it all is there
    except LocalFault:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return load_tokenizer(folder)


def _interruptibly(train: Callable[[], object]) -> None:
    """Train in a thread: on the main one the library lets no signal through until it is done.

    Raises:
        KeyboardInterrupt: the thread goes on until this process ends.
    """
    ended: Future[object] = Future()

    def run() -> None:
        try:
            ended.set_result(train())
        except BaseException as error:  # noqa: BLE001 (raised again where somebody waits)
            ended.set_exception(error)

    threading.Thread(target=run, name="tokenizer", daemon=True).start()
    ended.result()


def named_ends(folder: Path) -> Iterator[str]:
    """The end of documents that each file beside a tokenizer names."""
    for name in CONFIG_NAMES:
        try:
            end = json.loads(read_regular(folder / name, 1 << 20)).get("eos_token")
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
        end = end.get("content") if isinstance(end, dict) else end
        if isinstance(end, str):
            yield end


def _library() -> Any:
    with needing("text to tokens", "tokenizers", "hf"):
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    return tokenizers
