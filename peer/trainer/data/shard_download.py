"""Prepared shards on a web server: downloads meta.json first, and then only the shards that are read.

The manifest contains the digest of meta.json, and meta.json contains each shard's length and digest. So a server can
withhold data, but cannot change it. An interrupted download resumes, and is checked when it is complete.
"""

from __future__ import annotations

import os
import urllib.error
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urljoin

from dht.ground.errors import LocalFault, UsageFault, writing
from dht.ground.fields import clean_text
from dht.ground.quantities import bytes_text
from peer.sources.web_request import BROKEN, PrivateAddress, to_same_scheme, web_answer
from peer.trainer.data import shards
from peer.trainer.data.context_blocks import GroupedStream
from peer.trainer.data.fetching_within_disk_limit import Stock, patiently
from peer.trainer.data.prepared_folder import ShardFolder
from peer.trainer.text.source_files import Tokens, check_room

META_SECONDS = 300.0
"""Time limit for the download of meta.json, which has a few MB at most."""


class WebStock:
    """Shards that are downloaded when requested; implements `GroupFiles` for its `Stock`.

    Args:
        url: address of meta.json.
        digest: digest of meta.json.
        cache: folder for data; the shards are stored in their own folder inside it.
        note: receives sentences for the owner.
        limit_bytes: see `Stock`.
        is_own: the volunteer chose the address; see `web_answer`.

    Raises:
        UsageFault: meta.json does not match the manifest.
        LocalFault: meta.json cannot be fetched.
    """

    def __init__(
        self,
        url: str,
        digest: str,
        cache: Path,
        note: Callable[[str], None],
        limit_bytes: int | None = None,
        *,
        is_own: bool = False,
    ) -> None:
        self._url = url
        self._is_own = is_own
        self.folder = cache / digest[:16]
        self._note = note
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self.meta = self._meta(digest)
        self._stock = Stock(self, note, limit_bytes)
        self._shards: ShardFolder | None = None

    def corpus_parts(self, vocab_size: int) -> tuple[GroupedStream, ShardFolder]:
        """Download the held-out shards, and return (training stream, folder).

        Raises:
            UsageFault, LocalFault: a held-out shard cannot be fetched, or does not match meta.json.
        """
        for shard in self.meta.held_out:
            patiently(partial(self.fetch, shard), self._note)
        folder = ShardFolder(self.folder, self.meta, vocab_size)
        self._shards = folder
        return folder.training(self._stock, self._open), folder

    @property
    def num_groups(self) -> int:
        return len(self.meta.training)

    @property
    def lasting_bytes(self) -> int:
        return sum(self.meta.num_bytes(shard) for shard in self.meta.held_out)

    def bring(self, group: int) -> None:
        self.fetch(self.meta.training[group])

    def bytes_here(self, group: int) -> int | None:
        shard = self.meta.training[group]
        return self.meta.num_bytes(shard) if (self.folder / shard.name).exists() else None

    def bytes_expected(self, group: int) -> int | None:
        return self.meta.num_bytes(self.meta.training[group])

    def remove(self, group: int) -> None:
        if self._shards is not None:
            self._shards.remove(self.meta.training[group])

    def _open(self, group: int) -> tuple[str, Tokens] | None:
        """Open a shard; download it again if it was corrupted on the disk."""
        assert self._shards is not None
        try:
            return self._shards.open(self.meta.training[group])
        except UsageFault as fault:
            self._note(f"{fault}; this peer downloads it again")
            self._stock.lose(group)
            return None

    def fetch(self, shard: shards.Shard) -> None:
        """Download a shard, unless it is already present.

        Raises:
            UsageFault: the downloaded bytes do not match meta.json.
            LocalFault: the shard cannot be fetched, or there is no room for it.
        """
        path = self.folder / shard.name
        if path.exists():
            return
        draft = path.with_name(f"{path.name}.part")
        num_bytes = self.meta.num_bytes(shard)
        check_room(self.folder, num_bytes, shard.name)
        _download(urljoin(self._url, shard.name), draft, num_bytes, is_own=self._is_own)
        try:
            shards.check_shard(draft, self.meta, shard)
        except UsageFault:
            draft.unlink(missing_ok=True)
            raise
        os.replace(draft, path)

    def _meta(self, digest: str) -> shards.Meta:
        found = shards.read_meta(self.folder, digest)
        if found is not None:
            return found
        content = patiently(partial(_read, self._url, shards.MAX_META_BYTES, is_own=self._is_own), self._note)
        meta = shards.parse_meta(content, self._url, digest)
        shards.write_new(self.folder / shards.META_NAME, content)
        return meta


def _read(url: str, max_bytes: int, *, is_own: bool) -> bytes:
    try:
        with web_answer(url, redirects=to_same_scheme, is_own=is_own) as answer:
            content = answer.read(max_bytes + 1, META_SECONDS)
    except PrivateAddress as error:
        raise _not_followed(url, error) from error
    except BROKEN as error:
        raise LocalFault(
            f"{url} cannot be fetched ({_reason(error)}); expected {shards.META_NAME} at this "
            "address; is the server up?"
        ) from error
    if len(content) > max_bytes:
        raise UsageFault(
            f"{url} has more than {bytes_text(max_bytes)}; expected the {shards.META_NAME} of prepared data"
        )
    return content


def _not_followed(url: str, error: PrivateAddress) -> UsageFault:
    return UsageFault(
        f"{url} is not fetched ({error.reason}); expected a public server, because the address comes from the run's "
        f"manifest; if you trust it, give it yourself: --data {url.rpartition('/')[0]}/{shards.META_NAME}"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"status {error.code}"
    return clean_text(str(getattr(error, "reason", None) or error), 200) or type(error).__name__


def _download(url: str, draft: Path, num_bytes: int, *, is_own: bool) -> None:
    """Fill `draft` up to `num_bytes`, resuming at its end."""
    try:
        with draft.open("ab") as file:
            start = file.tell()
            if start > num_bytes:
                file.truncate(0)
                start = 0
            if start == num_bytes:
                return
            headers = {"Range": f"bytes={start}-"} if start else {}
            with web_answer(url, redirects=to_same_scheme, headers=headers, is_own=is_own) as answer:
                if start and answer.status != 206:
                    file.truncate(0)
                    start = 0
                missing = num_bytes - start
                for chunk in answer.chunks(missing):
                    file.write(chunk)
                    missing -= len(chunk)
    except PrivateAddress as error:
        raise _not_followed(url, error) from error
    except BROKEN as error:
        raise LocalFault(f"{url} cannot be fetched ({_reason(error)}); expected {bytes_text(num_bytes)}") from error
    if missing:
        raise LocalFault(f"{url} ended {bytes_text(missing)} early; expected {bytes_text(num_bytes)}")
