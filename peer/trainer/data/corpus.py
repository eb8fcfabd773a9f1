"""The data of a run: its sources, and the part of them that is held out.

`stdlib:` is the text of the Python standard library, which every volunteer has. `text:PATH[,PATH...]` means files or
folders whose bytes are the tokens. `tokens:PATH` is a folder of prepared shards. `peer/config/data_source.py` defines
which sources a manifest may use. Held-out files or ranges never appear in the training stream.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import blake3
import numpy as np
import torch

from dht.ground.errors import UsageFault
from dht.ground.quantities import bytes_text, plural
from peer.config.allowed_files import TOKENIZER_NAME
from peer.config.data_source import EVALUATION_BATCHES, HELD_OUT_FRACTION, LIBRARY, TOKENS, WEB
from peer.config.manifest import RunManifest
from peer.files.checked_folder import run_file_path
from peer.trainer.data.context_blocks import TokenStream, TrainingStream, identity_of
from peer.trainer.data.prepared_folder import ShardFolder, check_fits, tokenizer_digest_of, training_stream
from peer.trainer.data.shard_download import WebStock
from peer.trainer.data.shards import META_NAME, prepared_folder_of, read_meta, without_meta
from peer.trainer.data.text_fetching import TextRules, TextStock
from peer.trainer.data.tokenizing import load_tokenizer
from peer.trainer.text.held_out import (
    DIVISION,
    LONG_BYTES,
    MOST_HELD_OUT,
    HeldOutRule,
    edges_of,
    edges_of_short,
    fraction_of,
    more_held_out,
)
from peer.trainer.text.source_files import Segments, chosen_files, library_files

CACHE_NAME = "data"
"""Name of the cache of tokenized text, in the data folder."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """The training data of a run, and the held-out data that only measures the loss.

    Attributes:
        facts: a phrase for people about the files that were read and those left out.
        bytes_per_token: UTF-8 bytes of text per held-out token; None if unknown.
        close: ends the tokenizing process, for a caller that no longer needs the corpus.
    """

    training: TrainingStream
    held_out: TokenStream
    facts: str = ""
    bytes_per_token: float | None = None
    close: Callable[[], None] = lambda: None

    def num_held_out(self, num_batches: int, batch_size: int, context: int) -> int:
        """Return the number of distinct tokens in `held_out_batches`; blocks of short text overlap."""
        return min(num_batches * batch_size * context, self.held_out.num_tokens - 1)

    def held_out_batches(
        self, num_batches: int, batch_size: int, context: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the same batches on every call, spread evenly over the held-out text; see `TokenStream.batch`."""
        last_block = max(1, num_batches * batch_size - 1)
        room = self.held_out.num_tokens - context - 1
        for first in range(0, num_batches * batch_size, batch_size):
            positions = [room * block // last_block for block in range(first, first + batch_size)]
            yield self.held_out.batch(np.array(positions, np.int64), context)


def open_run_corpus(
    manifest: RunManifest,
    source: str,
    data_dir: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
    tokenizer_path: Path | None = None,
    limit_bytes: int | None = None,
    *,
    is_own: bool = False,
) -> Corpus:
    """Call `open_corpus` with the data settings of the run's manifest; tokenize text if the run has a tokenizer.

    Args:
        source: the data source of this peer (`peer.config.data_source.source_here`).
        data_dir: the peer's data folder, with files of the run and the cache of tokenized text; None: text cannot be
            tokenized.
        note: receives sentences for the owner.
        tokenizer_path: the run's verified tokenizer, if it is not in the data folder.
        limit_bytes: limit on the disk space for downloaded and tokenized data; None: the free space of the disk.
        is_own: the volunteer chose the source, so it is fetched with the volunteer's login.

    Raises:
        UsageFault: see `open_corpus`.
        LocalFault: the tokenizer or a library is missing, or data cannot be fetched.
    """
    data = manifest.data
    if manifest.tokenizer is not None and not source.startswith((TOKENS, WEB)):
        if data_dir is None:
            raise UsageFault(
                f"{source} is text, but this run reads tokens; expected shards made with its tokenizer; give --data "
                "tokens:DIR with a folder that `peer data prepare` wrote"
            )
        path = tokenizer_path or run_file_path(data_dir, manifest, TOKENIZER_NAME)
        return _tokenized(manifest, source, path, data_dir / CACHE_NAME, note, limit_bytes, is_own)
    if source.startswith(WEB):
        return _downloaded(manifest, source, data_dir, note, limit_bytes, is_own)
    return open_corpus(
        source,
        vocab_size=manifest.model.vocab_size,
        context=manifest.model.context,
        held_out_fraction=HELD_OUT_FRACTION,
        tokenizer_digest=tokenizer_digest_of(manifest),
        digest=data.digest,
    )


def _downloaded(
    manifest: RunManifest,
    source: str,
    data_dir: Path | None,
    note: Callable[[str], None],
    limit_bytes: int | None,
    is_own: bool,
) -> Corpus:
    data, vocab_size = manifest.data, manifest.model.vocab_size
    if data.digest is None or data_dir is None:
        raise UsageFault(
            f"{source} cannot be used: the run has no data.digest, or there is no data folder; expected shards on "
            "this machine; give --data tokens:DIR"
        )
    stock = WebStock(source, data.digest, data_dir / CACHE_NAME, note, limit_bytes, is_own=is_own)
    check_fits(stock.meta, source, vocab_size, tokenizer_digest_of(manifest))
    training, folder = stock.corpus_parts(vocab_size)
    held_out = folder.held_out(manifest.model.context)
    return Corpus(training, held_out, f"{folder.facts()} here", stock.meta.held_out_bytes_per_token)


def _tokenized(
    manifest: RunManifest,
    source: str,
    tokenizer_path: Path,
    cache: Path,
    note: Callable[[str], None],
    limit_bytes: int | None,
    is_own: bool,
) -> Corpus:
    data, model = manifest.data, manifest.model
    tokenizer = load_tokenizer(tokenizer_path)
    if tokenizer.vocab_size > model.vocab_size:
        raise UsageFault(
            f"the run's {TOKENIZER_NAME} has {tokenizer.vocab_size} tokens, but its model has {model.vocab_size}; "
            "expected a model with at least as many tokens; tell the run's owner"
        )
    num_evaluated = EVALUATION_BATCHES * manifest.training.batch_size * (model.context + 1)
    rules = TextRules(tokenizer, data.text_field, HELD_OUT_FRACTION, model.vocab_size, model.context, num_evaluated)
    stock = TextStock(source, rules, cache, note, limit_bytes, is_own=is_own)
    try:
        held_out, bytes_per_token = stock.held_out()
    except BaseException:
        stock.close()
        raise
    facts = f"{plural(len(stock.parts), 'part')}, tokenized as it is read"
    return Corpus(stock.training(), held_out, facts, bytes_per_token, stock.close)


def open_corpus(
    source: str,
    *,
    vocab_size: int,
    context: int,
    held_out_fraction: float,
    tokenizer_digest: str | None = None,
    digest: str | None = None,
) -> Corpus:
    """Open the data of a run.

    Args:
        source: ``stdlib:``, ``text:PATH[,PATH...]`` or ``tokens:PATH``.
        held_out_fraction: share that is never trained on, as `peer/trainer/text/held_out.py` defines; files of the
            standard library are chosen by their names; prepared shards contain the division themselves.
        tokenizer_digest: digest of the run's tokenizer; None: the run has none.
        digest: digest of meta.json in the run's manifest; None: the manifest has none.

    Raises:
        UsageFault: the source is of an unknown kind, has no text, or has less than one block on either side; a path is
            missing, unreadable or not a regular file; tokens are outside the vocabulary, or belong to a different
            tokenizer or data set.
    """
    kind, _, rest = source.partition(":")
    if kind == "tokens" and rest:
        return _prepared(rest, vocab_size, context, tokenizer_digest, digest)
    if source == LIBRARY:
        segments, num_left_out = library_files(), 0
    elif kind == "text" and rest:
        segments, num_left_out = chosen_files(rest)
    else:
        raise UsageFault(f"data source {source!r}; expected stdlib:, text:PATH[,PATH...] or tokens:PATH")
    if vocab_size < 256:
        raise UsageFault(f"{source} contains bytes, but vocab_size is {vocab_size}; expected at least 256")
    if source == LIBRARY:
        training, held_out = _split_by_name(segments, held_out_fraction)
        identity = identity_of([(name, len(tokens)) for name, tokens in training])
    else:
        training, held_out, identity = _split_by_content(segments, held_out_fraction, context)
    num_bytes = sum(tokens.nbytes for _, tokens in segments)
    facts = f"{plural(len(segments), 'file')}, {bytes_text(num_bytes)}"
    if num_left_out:
        facts += f"; left out {num_left_out} entries that lead out of the folder or are not files"
    corpus = Corpus(
        TokenStream(training, vocab_size, identity),
        TokenStream(held_out, vocab_size),
        facts,
        bytes_per_token=1.0,
    )
    for part, stream in (("to train on", corpus.training), ("held out", corpus.held_out)):
        if stream.num_tokens <= context:
            raise UsageFault(
                f"{source} has {stream.num_tokens} tokens {part}; expected at least {context + 1} (one context and a "
                "token); give more text"
            )
    return corpus


def _prepared(
    text: str,
    vocab_size: int,
    context: int,
    tokenizer_digest: str | None,
    digest: str | None,
) -> Corpus:
    """Open the corpus of a folder with a meta.json."""
    folder = prepared_folder_of(text)
    meta = read_meta(folder, digest)
    if meta is None:
        raise without_meta(text)
    check_fits(meta, str(folder / META_NAME), vocab_size, tokenizer_digest)
    shards = ShardFolder(folder, meta, vocab_size)
    training = training_stream(shards, context)
    return Corpus(training, shards.held_out(context), shards.facts(), meta.held_out_bytes_per_token)


def _split_by_name(segments: Segments, fraction: float) -> tuple[Segments, Segments]:
    """Split the standard library by file name into (training, held out), because its text varies with the Python
    version.
    """
    sides: tuple[Segments, Segments] = ([], [])
    for name, tokens in segments:
        hashed = int.from_bytes(hashlib.sha256(f"held-out|{name}".encode()).digest()[:8], "big")
        sides[hashed < fraction * 2**64].append((name, tokens))
    return sides


def _split_by_content(segments: Segments, fraction: float, context: int) -> tuple[Segments, Segments, int]:
    """Split files by the rule of `peer/trainer/text/held_out.py` into (training, held out, identity).

    Each file is a document, and is read once.
    """
    hashes: list[float] = []
    for _, tokens in segments:
        hasher = blake3.blake3(b"held-out|")
        for start in range(0, len(tokens), LONG_BYTES):
            hasher.update(tokens[start : start + LONG_BYTES].tobytes())
        hashes.append(fraction_of(hasher))
    identity = identity_of(
        DIVISION, [(value, len(tokens)) for value, (_, tokens) in zip(hashes, segments, strict=True)]
    )
    training, held_out = _divided(segments, hashes, HeldOutRule.of(fraction))
    num_tokens, num_needed = sum(len(tokens) for _, tokens in segments), context + 1
    if min(map(_length, (training, held_out))) < num_needed <= num_tokens // 2:
        short = [(value, len(tokens)) for value, (_, tokens) in zip(hashes, segments, strict=True)]
        short = [(value, length) for value, length in short if length <= LONG_BYTES]
        share = min(max(fraction, (num_needed + len(segments)) / num_tokens), MOST_HELD_OUT)
        rule = more_held_out(share, sum(length for _, length in short), short)
        training, held_out = _divided(segments, hashes, rule)
    return training, held_out, identity


def _length(segments: Segments) -> int:
    return sum(len(tokens) for _, tokens in segments)


def _divided(segments: Segments, hashes: Sequence[float], rule: HeldOutRule) -> tuple[Segments, Segments]:
    sides: tuple[Segments, Segments] = ([], [])
    for value, (name, tokens) in zip(hashes, segments, strict=True):
        length = len(tokens)
        edges = edges_of(length, rule.share) if length > LONG_BYTES else edges_of_short(value, length, rule)
        for number, (start, stop) in enumerate(itertools.pairwise([0, *edges, length])):
            if stop > start:
                sides[number % 2].append((name, tokens.part(start, stop)))
    return sides
