"""Writes and reads `run.json` of an exported folder: every field is checked, and a digest over all. Loads no torch.

The digest detects damage, not malice: the author of a forged file can also write its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dht.ground.errors import Incompatible, LocalFault, UsageFault
from dht.ground.regular_files import read_regular
from dht.records.evaluation import Evaluation
from peer.config.manifest import RunManifest
from peer.config.validation_sentences import explain, shown
from peer.version import software

SCHEMA = 2
"""Format 1 had no digest over all fields."""
DIGEST_NAME = "config_sha256"
RUN_NAME = "run.json"
MAX_CONFIG_BYTES = 256 * 1024
"""A manifest takes 12 KiB at most, 32 fragments about 10 KiB."""

_MAX_COUNT = 2**63 - 1
_Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
_Text = Annotated[str, Field(max_length=500, pattern=r"^[^\p{C}]*$", examples=["printable text"])]
_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$", examples=["64 hexadecimal digits"])]


class ExportedFragment(BaseModel):
    """One fragment of an exported model.

    Attributes:
        digest: digest of anchor and momentum, 64 hexadecimal digits, as announced by members.
        num_confirmed: members with this digest at this version; 0 for a checkpoint, for which no member was asked.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    index: _Count
    version: _Count
    digest: _Sha256
    lineage_tokens: _Count
    num_values: _Count
    num_confirmed: _Count


class ModelHeader(BaseModel):
    """The fields of `run.json`; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    schema_number: Literal[2] = Field(alias="schema")
    run_id: _Text
    software: _Text
    exported_at: float
    origin: _Text
    manifest_hash: _Sha256
    manifest: dict[str, Any]
    versions: list[_Count] = Field(max_length=64)
    tokens: _Count
    fragments: list[ExportedFragment] = Field(max_length=64)
    validation_loss: float | None
    validation_version: _Count | None
    parameters_sha256: str = Field(pattern="^([0-9a-f]{64})?$", examples=["64 hexadecimal digits"])


def sealed(facts: Mapping[str, Any], evaluation: Evaluation | None) -> dict[str, Any]:
    """Return the facts about a model with its evaluation, and a digest over all fields."""
    loss, version = (None, None) if evaluation is None else (evaluation.loss, evaluation.version)
    whole = {"schema": SCHEMA, **facts, "validation_loss": loss, "validation_version": version}
    return {**whole, DIGEST_NAME: config_digest(whole)}


def run_json(folder: Path) -> str:
    """Read `run.json`.

    Raises:
        UsageFault: the file cannot be read.
    """
    wanted = "a folder that `peer export` wrote"
    if not folder.is_dir():
        raise UsageFault(f"{folder} is not a folder; expected {wanted}.")
    if not (folder / RUN_NAME).exists():
        raise UsageFault(f"{folder} has no {RUN_NAME}; expected {wanted}.")
    try:
        return read_regular(folder / RUN_NAME, MAX_CONFIG_BYTES).decode()
    except (OSError, ValueError) as error:
        raise UsageFault(
            f"{folder / RUN_NAME} cannot be read ({getattr(error, 'strerror', None) or 'no text'}); expected {wanted}."
        ) from error


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 (64 hexadecimal digits) of all fields except the digest itself."""
    fields = {name: value for name, value in config.items() if name != DIGEST_NAME}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_header(path: Path, text: str) -> tuple[dict[str, Any], ModelHeader, RunManifest]:
    """Validate the JSON in the exported folder `path`, and return it unchanged with its header and manifest.

    Raises:
        UsageFault: the folder was not written by this software.
        Incompatible: the folder was written by a different version.
        LocalFault: the folder is damaged.
    """
    try:
        config = json.loads(text) if 0 < len(text) <= MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise UsageFault(f"{path} does not specify its run; expected a folder that `peer export` wrote.")
    schema = config.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise Incompatible(
            f"{path} has the format {shown(schema)}; expected format {SCHEMA}; use the software version "
            f"that wrote it ({shown(config.get('software'))})"
        )
    if config.get(DIGEST_NAME) != config_digest(config):
        raise LocalFault(f"{path} is damaged: its facts do not match their digest; export the model again")
    try:
        header = ModelHeader.model_validate(config)
    except ValidationError as error:
        raise LocalFault(f"{path} is damaged: {explain(error, ModelHeader)} Export the model again.") from error
    manifest = _manifest_of(path, header)
    if manifest.hash.hex() != header.manifest_hash:
        raise LocalFault(f"{path} is damaged: its manifest does not match the hash beside it; export the model again")
    return config, header, manifest


def _manifest_of(path: Path, header: ModelHeader) -> RunManifest:
    try:
        canonical = json.dumps(
            header.manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return RunManifest.from_bytes(canonical.encode(), takes_part=False)
    except (ValueError, RecursionError) as error:
        raise Incompatible(f"the manifest in {path} does not fit {software()}: {error}") from error
