"""Converts text to tokens with a tokenizer.json of the `tokenizers` library, and makes a new tokenizer from text.

A tokenizer is untrusted: it is loaded and used in a child process with limits. In this process the library is only
used to make a new tokenizer.
"""

from __future__ import annotations

import codecs
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import blake3

from dht.ground.errors import LocalFault, UsageFault, reading, writing
from dht.ground.regular_files import read_regular
from peer.config.allowed_files import TOKENIZER_NAME
from peer.limited_child.limited_child import ChildLimits, LimitedChild
from peer.optional_libraries import needing
from peer.trainer.data.loaded_tokenizer import CONFIG_NAMES, END_OF_TEXT, token_dtype
from peer.trainer.data.shards import write_new
from peer.trainer.text.source_files import TokenType

MAX_TOKENIZER_BYTES = 64 << 20
"""The largest tokenizers take 35 MB as JSON."""

MAX_TOKEN_CHARACTERS = 4096
"""Limit on the text of one token; the longest published tokens are rows of a few hundred spaces."""
LIMITS = ChildLimits(memory_bytes=2 << 30, seconds=60.0)
"""A tokenizer of 35 MB takes 0.6 GB and 3 s to load; a slow machine needs ten times as long."""
ADVICE = "if the tokenizer belongs to a run, tell the run's owner; otherwise choose another tokenizer"


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """The facts about a tokenizer that all peers of a run must agree on; the library is not loaded in this process.

    Attributes:
        digest: BLAKE3 of tokenizer.json, 64 hexadecimal digits.
        eos: the token that ends a document.
        vocab_size: the largest token plus 1.
        special: the `USUAL_MASKS` that the tokenizer has, with their numbers.
    """

    path: Path
    digest: str
    eos: int
    vocab_size: int
    special: Mapping[str, int]

    @property
    def dtype(self) -> TokenType:
        """The dtype in which tokens are stored: uint16 where they fit."""
        return token_dtype(self.vocab_size)


class OpenTokenizer:
    """A tokenizer in a child process with limits on memory and time. The caller must `close` it.

    Args:
        path: a tokenizer.json, or the folder that contains it.
        end: the special token that ends documents; None: the one given in the files beside tokenizer.json, or a typical
            one.

    Attributes:
        facts: the facts about the tokenizer.

    Raises:
        UsageFault: there is no tokenizer, the tokenizer is unusable, or the token that ends documents is unknown.
        LocalFault: the library is missing, or exceeded `LIMITS` with this file.
    """

    def __init__(self, path: Path, end: str | None = None) -> None:
        file, content, end = tokenizer_content(path, end)
        self._child = LimitedChild(
            "peer.trainer.data.loaded_tokenizer",
            {"file": str(file), "end": end},
            LIMITS,
            f"the tokenizer {file}",
            ADVICE,
        )
        try:
            self.facts = _checked_facts(file, content, self._child.ask({}, content)[0])
        except BaseException:
            self.close()
            raise

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without the special tokens that a tokenizer would add.

        Raises:
            LocalFault: see `OpenTokenizer`.
        """
        answer = self._child.ask({"texts": list(texts)})[0].get("tokens")
        if not isinstance(answer, list) or len(answer) != len(texts) or not all(map(self._are_tokens, answer)):
            raise self._unusable("tokens")
        return answer

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, including special tokens.

        Raises:
            LocalFault: see `OpenTokenizer`.
        """
        text = self._child.ask({"tokens": list(tokens)})[0].get("text")
        if not isinstance(text, str) or len(text) > MAX_TOKEN_CHARACTERS * len(tokens):
            raise self._unusable("text")
        return text

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _are_tokens(self, tokens: Any) -> bool:
        size = self.facts.vocab_size
        return isinstance(tokens, list) and all(type(token) is int and 0 <= token < size for token in tokens)

    def _unusable(self, what: str) -> LocalFault:
        return LocalFault(f"{self.facts.path} returns no valid {what}; expected {what} for each input; {ADVICE}")


def load_tokenizer(path: Path, end: str | None = None) -> TextTokenizer:
    """Load a tokenizer in a child process, and return the facts about it.

    Args:
        path, end: see `OpenTokenizer`.

    Raises:
        UsageFault, LocalFault: see `OpenTokenizer`.
    """
    with OpenTokenizer(path, end) as tokenizer:
        return tokenizer.facts


def tokenizer_content(path: Path, end: str | None) -> tuple[Path, bytes, str | None]:
    """Return (file, its bytes, the token that ends documents) of a tokenizer.json, given by its path or its folder.

    Args:
        end: see `OpenTokenizer`.

    Raises:
        UsageFault: there is no such file, or the library cannot read it.
    """
    file = path / TOKENIZER_NAME if path.is_dir() else path
    with reading(file, f"a {TOKENIZER_NAME} of the tokenizers library, or a folder with one (`peer data tokenizer`)"):
        content = read_regular(file, MAX_TOKENIZER_BYTES)
    if content.startswith(codecs.BOM_UTF8):
        raise UsageFault(
            f"{file} begins with a byte order mark, which the tokenizers library does not accept; expected UTF-8 "
            "without it; save the file again"
        )
    return file, content, end or next(named_ends(file.parent), None)


def _checked_facts(file: Path, content: bytes, answer: Mapping[str, Any]) -> TextTokenizer:
    eos, vocab_size, special = (answer.get(name) for name in ("eos", "vocab_size", "special"))
    if (
        type(eos) is not int
        or type(vocab_size) is not int
        or not 0 <= eos < vocab_size <= 1 << 32
        or not isinstance(special, dict)
        or not all(type(number) is int and 0 <= number < vocab_size for number in special.values())
    ):
        raise LocalFault(f"{file} has tokens without valid numbers; expected whole numbers from 0; {ADVICE}")
    return TextTokenizer(file, blake3.blake3(content).hexdigest(), eos, vocab_size, special)


def make_tokenizer(texts: Iterable[str], vocab_size: int, folder: Path) -> TextTokenizer:
    """Train a byte-level BPE (arXiv 1508.07909, on bytes as in GPT-2) and write it in the format of transformers.

    Raises:
        UsageFault: the vocabulary is too small, there is no text, or the folder already contains a tokenizer.
        LocalFault: the library is missing, or the folder is not writable.
    """
    library = _library()
    if vocab_size < 257:
        raise UsageFault(f"--vocab-size is {vocab_size}; expected at least 257: all bytes, and the end of a document")
    if (folder / TOKENIZER_NAME).exists():
        raise UsageFault(f"{folder / TOKENIZER_NAME} already exists; expected a new folder; choose another --out")
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
        raise UsageFault("there is no text in these files; expected text to learn tokens from")
    _interruptibly(lambda: tokenizer.train_from_iterator(itertools.chain([first], text), trainer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    is_new = not folder.exists()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        write_new(folder / CONFIG_NAMES[0], (json.dumps(config, indent=2) + "\n").encode())
        write_new(folder / TOKENIZER_NAME, tokenizer.to_str(pretty=True).encode())  # written last
    except LocalFault:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return load_tokenizer(folder)


def _interruptibly(train: Callable[[], object]) -> None:
    """Train in a thread, because on the main thread the library blocks signals until it has finished.

    Raises:
        KeyboardInterrupt: the user interrupted; the thread continues until this process ends.
    """
    ended: Future[object] = Future()

    def run() -> None:
        try:
            ended.set_result(train())
        except BaseException as error:  # noqa: BLE001 (raised again in the waiting caller)
            ended.set_exception(error)

    threading.Thread(target=run, name="tokenizer", daemon=True).start()
    ended.result()


def named_ends(folder: Path) -> Iterator[str]:
    """Yield the token that ends documents from each file beside a tokenizer."""
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
