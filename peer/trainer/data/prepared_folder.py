"""A corpus of prepared shards in a folder: uses the shards that are present, and checks each before its first read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from dht.ground.errors import UsageFault
from dht.ground.quantities import bytes_text, count_text, plural
from peer.config.data_source import HUB, LIBRARY, TOKENS, WEB, source_here
from peer.config.manifest import RunManifest
from peer.trainer.data.context_blocks import GroupedStream, TokenStream, check_ids, identity_of
from peer.trainer.data.fetching_within_disk_limit import Stock
from peer.trainer.data.shards import META_NAME, Meta, Shard, check_shard, prepared_folder_of, read_meta, without_meta
from peer.trainer.text.source_files import FileTokens, OpenFiles, Tokens, files_at
from peer.user_folders import paths_in


class ShardFolder:
    """Shards of one meta.json in a folder; missing shards may arrive later.

    Args:
        vocab_size: vocabulary size of the run.
    """

    def __init__(self, folder: Path, meta: Meta, vocab_size: int) -> None:
        self.folder = folder
        self.meta = meta
        self._vocab_size = vocab_size
        self._files = OpenFiles()

    def open(self, shard: Shard) -> tuple[str, Tokens] | None:
        """Check the digest of a shard and return (name, tokens); None if the shard is not present.

        Raises:
            UsageFault: the file does not match meta.json.
        """
        path = self.folder / shard.name
        if not path.exists():
            return None
        check_shard(path, self.meta, shard)
        return shard.name, FileTokens(self._files, path, self.meta.token_type, 0, shard.tokens)

    def held_out(self, context: int) -> TokenStream:
        """Return the held-out stream, which only measures the loss.

        Raises:
            UsageFault: there is no held-out shard, or a held-out shard is missing or does not match meta.json.
        """
        found = []
        for shard in self.meta.held_out:
            opened = self.open(shard)
            if opened is None:
                raise UsageFault(
                    f"{self.folder / shard.name} is missing; expected every held-out shard that {META_NAME} lists, "
                    "because all peers measure the loss on them; copy it there"
                )
            found.append(opened)
        stream = TokenStream(found, self._vocab_size)
        if stream.num_tokens <= context:
            raise UsageFault(
                f"{self.folder} has {stream.num_tokens} held-out tokens; expected at least {context + 1} (one context "
                "and a token); prepare it again with a larger --held-out"
            )
        return stream

    def remove(self, shard: Shard) -> None:
        """Delete the shard's file; ignore a file that cannot be deleted."""
        path = self.folder / shard.name
        self._files.forget(path)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def training(
        self, stock: Stock | None = None, opens: Callable[[int], tuple[str, Tokens] | None] | None = None
    ) -> GroupedStream:
        """Return the stream to train on.

        Args:
            stock: see `GroupedStream`.
            opens: opens a shard by its number among the training shards, instead of `open`.
        """
        training = self.meta.training
        identity = identity_of([shard.digest for shard in training])

        def open_group(group: int) -> tuple[str, Tokens] | None:
            return self.open(training[group]) if opens is None else opens(group)

        return GroupedStream(len(training), self._vocab_size, open_group, identity, stock)

    def facts(self) -> str:
        """Return a phrase for people about how many shards are present."""
        training = self.meta.training
        here = [shard for shard in training if (self.folder / shard.name).exists()]
        size = bytes_text(sum(self.meta.num_bytes(shard) for shard in here))
        tokens = count_text(sum(shard.tokens for shard in here))
        return f"{len(here)} of {plural(len(training), 'shard')}, {size}, {tokens} tokens"


def tokenizer_digest_of(manifest: RunManifest) -> str | None:
    """Return the digest of the run's tokenizer; None if the run has none."""
    return None if manifest.tokenizer is None else manifest.tokenizer.digest


def check_fits(meta: Meta, where: str, vocab_size: int, tokenizer_digest: str | None) -> None:
    """Check that prepared data fits the run, before training on it.

    Args:
        tokenizer_digest: digest of the run's tokenizer; None: the run has none.

    Raises:
        UsageFault: the data was made with a different tokenizer, or with a tokenizer of more tokens than the model has.
    """
    if tokenizer_digest is not None and meta.tokenizer != tokenizer_digest:
        raise UsageFault(
            f"{where} was made with the tokenizer {meta.tokenizer[:16]}...; expected the run's tokenizer "
            f"{tokenizer_digest[:16]}...; run `peer data prepare --tokenizer` again with the run's tokenizer.json"
        )
    check_ids(where, max(shard.largest for shard in meta.shards), vocab_size)


def training_stream(shards: ShardFolder, context: int) -> GroupedStream:
    """Return the stream of the training shards that are in the folder.

    Raises:
        UsageFault: no shard is as long as one block.
    """
    training = shards.meta.training
    for shard in training:  # digests are checked when the shards are read
        path = shards.folder / shard.name
        if path.exists() and path.stat().st_size != shards.meta.num_bytes(shard):
            check_shard(path, shards.meta, shard)
    if not any((shards.folder / shard.name).exists() and shard.tokens > context for shard in training):
        raise UsageFault(
            f"{shards.folder} has none of the shards with at least {context + 1} tokens that {META_NAME} lists; "
            f"expected {training[0].name} and others; copy them there"
        )
    return shards.training()


def data_facts(manifest: RunManifest, own: str | None, limit_bytes: int | None = None) -> str:
    """Return a phrase about the data that this machine would train on, and its disk limit; reads no shard.

    Args:
        limit_bytes: the volunteer's limit for downloaded and tokenized data; None: the phrase has no limit.

    Raises:
        UsageFault: the volunteer has to choose the data, or the chosen data does not fit the run.
    """
    source = source_here(manifest.data.source, own, manifest.tokenizer is not None, manifest.data.digest)
    facts = _read_here(manifest, source)
    is_kept = source.startswith((HUB, WEB)) or (manifest.tokenizer is not None and not source.startswith(TOKENS))
    if limit_bytes is None or not is_kept:
        return facts
    return f"{facts}; takes at most {bytes_text(limit_bytes)} of the disk (--data-limit-gib)"


def _read_here(manifest: RunManifest, source: str) -> str:
    data = manifest.data
    if source.startswith(HUB):
        return f"{source}, read from the hub while training"
    if source.startswith(WEB):
        return f"{source}, with shards downloaded while training"
    if source == LIBRARY:
        return "the text of Python's standard library on this machine"
    kind, _, rest = source.partition(":")
    if f"{kind}:" == TOKENS:
        folder = prepared_folder_of(rest)
        meta = read_meta(folder, data.digest)
        if meta is None:
            raise without_meta(rest)
        check_fits(meta, source, manifest.model.vocab_size, tokenizer_digest_of(manifest))
        return ShardFolder(folder, meta, manifest.model.vocab_size).facts()
    files = [file for path in paths_in(rest) for _, file in files_at(path)[0]]
    return f"{plural(len(files), 'file')}, {bytes_text(sum(file.stat().st_size for file in files))}"
