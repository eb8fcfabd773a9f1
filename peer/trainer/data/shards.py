"""Prepared data: shards of tokens, and the meta.json that describes them.

A run may refer to a meta.json by its digest; meta.json then fixes the tokenizer, shards and held-out data for all
peers. The bytes are untrusted. Shard names cannot lead out of the folder, lengths are checked before a file is fetched
or mapped, and a shard is used only if its digest matches.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Literal, Self

import blake3
import numpy as np
from pydantic import Field, ValidationError, model_validator

from dht.ground.errors import UsageFault, reading, writing
from dht.ground.fields import refuse_constant
from dht.ground.regular_files import open_regular, read_regular, write_whole
from peer.config.section import DIGEST, Section
from peer.config.validation_sentences import explain
from peer.trainer.text.source_files import TokenType, check_there
from peer.user_folders import expanded

META_NAME = "meta.json"
MAX_META_BYTES = 16 << 20
"""Size of a meta.json of about 80000 shards: 5 TB at 64 MB each."""
_MAX_SHOWN_CHARACTERS = 500
"""Limit on the list of faults, because each shard may have one."""
MAX_SHARDS = 100_000
_READ_BYTES = 1 << 22

Digest = Annotated[str, Field(**DIGEST)]
Count = Annotated[int, Field(ge=0, le=2**53 - 1)]


class Shard(Section):
    """One file of tokens."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,60}\.(u16|u32)$", examples=["part-00000.u16"])
    tokens: int = Field(ge=1, le=2**40)
    text_bytes: Count
    """Bytes of the UTF-8 text of the shard."""
    largest: Count
    """The largest token in the shard."""
    digest: Digest
    """BLAKE3 of the shard's bytes."""
    held_out: bool
    """Whether the shard only measures the loss."""


class Meta(Section):
    """The content of meta.json.

    Raises:
        ValueError: a field is wrong, or fields contradict each other.
    """

    schema_version: Literal[1] = 1
    dtype: Literal["uint16", "uint32"]
    tokenizer: Digest
    """BLAKE3 of tokenizer.json."""
    eos: Count
    """The token that ends every document."""
    vocab_size: int = Field(ge=2, le=2**32)
    held_out_fraction: float = Field(ge=0, le=0.5)
    documents: Count
    shards: tuple[Shard, ...] = Field(strict=False, min_length=1, max_length=MAX_SHARDS)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        names = {shard.name.lower() for shard in self.shards}
        if len(names) != len(self.shards):
            raise ValueError("two shards have the same name; expected distinct names")
        suffix = ".u16" if self.dtype == "uint16" else ".u32"
        for shard in self.shards:
            if not shard.name.endswith(suffix):
                raise ValueError(f"shard {shard.name} with dtype {self.dtype}; expected names that end in {suffix}")
            if shard.largest >= self.vocab_size:
                raise ValueError(f"shard {shard.name} has token {shard.largest}; expected below {self.vocab_size}")
        return self

    @property
    def token_type(self) -> TokenType:
        """The dtype in which tokens are stored."""
        return np.dtype("<u2") if self.dtype == "uint16" else np.dtype("<u4")

    @property
    def training(self) -> tuple[Shard, ...]:
        """The shards to train on."""
        return tuple(shard for shard in self.shards if not shard.held_out)

    @property
    def held_out(self) -> tuple[Shard, ...]:
        """The shards that only measure the loss."""
        return tuple(shard for shard in self.shards if shard.held_out)

    @property
    def held_out_bytes_per_token(self) -> float | None:
        """UTF-8 bytes of text per held-out token; None if unknown."""
        tokens = sum(shard.tokens for shard in self.held_out)
        num_bytes = sum(shard.text_bytes for shard in self.held_out)
        return num_bytes / tokens if tokens and num_bytes else None

    def num_bytes(self, shard: Shard) -> int:
        """Return the length of a shard's file in bytes."""
        return shard.tokens * self.token_type.itemsize

    def to_bytes(self) -> bytes:
        """Return JSON with one line per field."""
        return (json.dumps(self.model_dump(mode="json", exclude_none=True), indent=1) + "\n").encode()


def digest_of(content: bytes) -> str:
    """Return the BLAKE3 digest as 64 hexadecimal digits."""
    return blake3.blake3(content).hexdigest()


def parse_meta(content: bytes, where: str, expected_digest: str | None = None) -> Meta:
    """Check and parse the bytes of a meta.json.

    Args:
        where: path or address of the file, for error messages.
        expected_digest: the digest in the run's manifest; None: the manifest has none.

    Raises:
        UsageFault: the digest differs, or a field is wrong; the message names the field.
    """
    if expected_digest is not None and digest_of(content) != expected_digest:
        raise UsageFault(
            f"{where} has digest {digest_of(content)[:16]}...; expected {expected_digest[:16]}..., the "
            "data.digest of the run's manifest; get the data of this run"
        )
    try:
        return Meta.model_validate(json.loads(content.decode(), parse_constant=refuse_constant))
    except ValidationError as error:
        faults = explain(error, Meta).rstrip(".")
        if len(faults) > _MAX_SHOWN_CHARACTERS:
            faults = f"{faults[:_MAX_SHOWN_CHARACTERS]}... and more"
        raise UsageFault(f"{where}: {faults}; make it with `peer data prepare`") from error
    except (ValueError, RecursionError) as error:
        raise UsageFault(f"{where} is not JSON; expected the {META_NAME} that `peer data prepare` writes") from error


def prepared_folder_of(text: str) -> Path:
    """Return the folder in ``tokens:PATH``.

    Raises:
        UsageFault: there is no such folder.
    """
    folder = expanded(text)
    check_there(folder)
    if not folder.is_dir():
        raise without_meta(text)
    return folder


def without_meta(where: object) -> UsageFault:
    """Return the error about a folder without prepared shards."""
    return UsageFault(
        f"{where} has no {META_NAME}; expected a folder of prepared shards; make it from text with `peer data "
        f"prepare`, ask the run's owner for it, or give --data text:{where} (jsonl:, parquet:) if the run accepts text"
    )


def read_meta(folder: Path, expected_digest: str | None = None) -> Meta | None:
    """Read the meta.json of a folder; return None if the folder has none.

    Raises:
        UsageFault: the file cannot be read, or is invalid.
    """
    path = folder / META_NAME
    if not path.exists():
        return None
    with reading(path):
        content = read_regular(path, MAX_META_BYTES)
    return parse_meta(content, str(path), expected_digest)


def write_meta(folder: Path, meta: Meta) -> str:
    """Write meta.json to the folder atomically; return its digest.

    Raises:
        LocalFault: the folder is not writable.
    """
    content = meta.to_bytes()
    write_new(folder / META_NAME, content)
    return digest_of(content)


def write_new(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically, readable for all users.

    Raises:
        LocalFault: the file cannot be written.
    """
    with writing(path):
        write_whole(path, content, 0o666)


def check_shard(path: Path, meta: Meta, shard: Shard) -> None:
    """Read a shard's complete file, and compare its length and digest with meta.json.

    Raises:
        UsageFault: the file is missing, or its length or digest differs.
    """
    with reading(path), open_regular(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes != meta.num_bytes(shard):
            raise UsageFault(
                f"{path} has {num_bytes} bytes; expected {meta.num_bytes(shard)}, as in {META_NAME}; copy it again"
            )
        hasher = blake3.blake3()
        while content := file.read(_READ_BYTES):
            hasher.update(content)
    if hasher.hexdigest() != shard.digest:
        raise UsageFault(
            f"{path} has digest {hasher.hexdigest()[:16]}...; expected {shard.digest[:16]}..., as in {META_NAME}; "
            "copy it again"
        )
