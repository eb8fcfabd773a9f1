"""RunManifest: everything on which all peers of a run must agree.

The run's owner signs the manifest's canonical bytes, and every handshake carries their SHA-256, so a single changed
digit makes a different run. Readers check size, form, names, types and ranges.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from averaging.rules import RULES
from dht.ground.errors import UsageFault
from dht.ground.fields import refuse_constant
from peer.config.access_sections import MAX_CHANGES, AccessSection, ChangeSection
from peer.config.allowed_files import MAX_FILES, TOKENIZER_NAME, FileSection, check_files
from peer.config.data_source import HUB, JSON_LINES, PARQUET, DataSection, needs_own, reads_bytes
from peer.config.model_section import ModelSection
from peer.config.section import LINE_OF_TEXT, MAX_WHOLE_NUMBER, WEB_EXAMPLE, WEB_PATTERN, Section
from peer.config.training_section import TrainingSection
from peer.config.validation_sentences import explain, read_toml, shown
from peer.version import software

MAX_MANIFEST_BYTES = 12 * 1024
"""Leaves 4 KiB of the 16 KiB run record for key, signature and framing; a typical manifest takes about 1.5 KiB."""

CODE_PATTERN = r"^https://[!-?A-~]{1,240}@([0-9a-f]{40}|[0-9a-f]{64})$"
"""Pattern of a repository at a commit: ASCII only, with one @, so that two addresses cannot look alike."""


class AveragingSection(Section):
    """How often peers exchange their work, in which form, and how the work is combined."""

    mode: Literal["sync", "streaming", "eager", "carry"] = Field(
        default="carry",
        description="sync: DiLoCo (arXiv 2311.08105); streaming: arXiv 2501.18512; eager: arXiv 2502.12996; "
        "carry: a fixed share of a peer's uncommitted work stays in its live parameters",
    )
    sync_every: int = Field(
        default=30, ge=1, le=100_000, description="H: number of inner steps between two sends of the same fragment"
    )
    num_fragments: int = Field(
        default=4, ge=1, le=32, description="P: number of fragments, which a peer sends in turn (arXiv 2501.18512)"
    )
    codec: Literal["int4", "fp32"] = Field(
        default="int4", description="int4: 4 bits per value on the wire (arXiv 2501.18512); fp32: exact values"
    )
    outer_lr: float = Field(default=0.7, gt=0, le=10, description="eta: outer learning rate (arXiv 2311.08105)")
    staleness_limit: int = Field(
        default=4,
        ge=0,
        le=1000,
        description="maximum number of versions by which work may be late; later work is dropped",
    )
    combine: Literal["mean", "centered_clip"] = Field(
        default="mean",
        description="mean: weighted mean; centered_clip: a mean that a minority of dishonest members cannot move far "
        "(arXiv 2106.11257)",
    )
    round_deadline_seconds: float = Field(
        default=60.0, ge=1, le=3600, description="upper limit of the deadlines that peers derive from earlier rounds"
    )


class NetworkSection(Section):
    """How often members announce themselves."""

    announce_seconds: float = Field(
        default=10.0, ge=1, le=600, description="seconds between two peer records of the same peer"
    )


class UnknownRules(ValueError):
    """The run follows different rules. The message states which side needs an update, and how to update."""

    def __init__(self, rules: int) -> None:
        if rules > RULES:
            from peer.installation import update_command  # reads the metadata of packages

            remedy = f"update this software: {update_command()}"
        else:
            remedy = "the run is older, and its owner must update it: docs/organiser/update.md"
        super().__init__(
            f"the run follows rules {rules}; expected rules {RULES}, the only rules that this software ({software()}) "
            f"supports, because members with different rules would compute different models; {remedy}"
        )


class RunManifest(Section):
    """The signed description of a run, frozen. Equal bytes mean the same run; see `to_bytes` and `hash`."""

    name: str = Field(
        pattern="^[a-z0-9-]{1,40}$",
        examples=["my-run (1 to 40 of a-z, 0-9 and -)"],
        description="name of the run, the first half of the run id",
    )
    rules: int = Field(
        default=RULES,
        ge=1,
        le=MAX_WHOLE_NUMBER,
        description="number of the rules that decide the bits of the model and the meaning of these fields; software "
        "with different rules refuses the run",
    )
    revision: int = Field(
        default=1, ge=1, le=MAX_WHOLE_NUMBER, description="number that grows each time the owner changes the manifest"
    )
    seed: int = Field(
        default=0, ge=0, le=MAX_WHOLE_NUMBER, description="seed of the initial parameters and of each peer's data order"
    )
    description: str = Field(
        default="",
        max_length=500,
        pattern=LINE_OF_TEXT["pattern"],
        examples=LINE_OF_TEXT["examples"],
        description="description of the run for people",
    )
    page: str | None = Field(
        default=None,
        pattern=WEB_PATTERN,
        examples=[WEB_EXAMPLE],
        description="address of the run's public page, from `peer dashboard`; `peer manifest edit --page` changes it",
    )
    licence: str = Field(
        default="",
        max_length=60,
        pattern=LINE_OF_TEXT["pattern"],
        examples=["one line of printable text, such as MIT"],
        description="licence of the model",
    )
    code: str | None = Field(
        default=None,
        pattern=CODE_PATTERN,
        examples=["https://example.org/team/repository@COMMIT (40 hexadecimal digits)"],
        description="custom only: repository of the code that trains this run; shown to people, never fetched or run",
    )
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    training: TrainingSection = TrainingSection()
    averaging: AveragingSection = AveragingSection()
    network: NetworkSection = NetworkSection()
    access: AccessSection = AccessSection()
    files: tuple[FileSection, ...] = Field(
        default=(),
        strict=False,
        description=f"at most {MAX_FILES} files, such as a tokenizer, that every member stores and sends to newcomers; "
        "`peer init --file` writes the list",
    )
    changes: tuple[ChangeSection, ...] = Field(
        default=(),
        strict=False,
        max_length=MAX_CHANGES,
        description="changes that later revisions make in the live run, oldest first; not part of the hash",
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.model.kind != "custom" and self.code is not None:
            raise ValueError(
                "code is given, but the model is not a custom module, so `peer join` needs no other code; remove it"
            )
        check_files(self.files)
        if self.tokenizer is None and self.data.source.startswith((JSON_LINES, PARQUET, HUB)):
            raise ValueError(
                f"data.source is {self.data.source!r} without a tokenizer; expected a file {TOKENIZER_NAME} of the "
                f"run: `peer init --file {TOKENIZER_NAME}`"
            )
        return self

    def _written(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self.model.kind == "custom":
            # A custom loop has its own rate, batch and data, so fields that the owner did not write are unknown.
            for part in ("training", "data"):
                section: Section = getattr(self, part)
                fields[part] = {name: value for name, value in fields[part].items() if name in section.model_fields_set}
                if not fields[part] and part not in self.model_fields_set:
                    del fields[part]
        return fields

    @property
    def page_address(self) -> str | None:
        """Address of the run's public page after all changes; None if the run has no page."""
        said = [change.page for change in self.changes if change.page is not None]
        return (said[-1] if said else self.page) or None

    @property
    def end_version(self) -> int | None:
        """The version at which the run ends, or None if the owner has not ended the run."""
        return min((change.at_version for change in self.changes if change.ends_run), default=None)

    @property
    def buffers_fragment(self) -> int | None:
        """Index of the fragment with the model's running statistics; None if these are not averaged."""
        return self.averaging.num_fragments if self.model.num_buffer_values else None

    @property
    def step_tokens(self) -> int:
        """Number of tokens per inner step."""
        return self.training.batch_size * self.training.accumulation_steps * self.model.context

    @property
    def tokenizer(self) -> FileSection | None:
        """The file of the run that turns text into tokens, or None."""
        return next((file for file in self.files if file.name == TOKENIZER_NAME), None)

    @property
    def has_byte_tokens(self) -> bool:
        """Whether each byte of the text is a token."""
        return self.tokenizer is None and reads_bytes(self.data.source)

    @property
    def flags_to_bring(self) -> str:
        """Flags for data and weights that a volunteer must bring, such as " --data text:PATH"; may be empty."""
        source, weights = self.data.source, self.model.init
        data = f" --data {source.partition(':')[0]}:PATH" if needs_own(source) else ""
        return data + (" --base DIR" if weights is not None and weights.source == "folder" else "")

    @property
    def loss_unit(self) -> str:
        """Unit of the run's losses; empty for a custom run, whose code decides."""
        if self.model.kind == "custom":
            return ""
        return f"nats per {'byte' if self.has_byte_tokens else 'token'}"

    @property
    def num_fragments(self) -> int:
        """Number of all fragments: the fragments of the averaged parameters, and the fragment of the buffers."""
        return self.averaging.num_fragments + (self.buffers_fragment is not None)

    def to_bytes(self) -> bytes:
        """Return canonical JSON in UTF-8: every field, sorted keys, no spaces, floats in shortest round-trip form."""
        fields = self.model_dump(mode="json")
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    @property
    def hash(self) -> bytes:
        """SHA-256 (32 bytes) of the canonical bytes of revision 1, without `changes`.

        Therefore peers with different revisions of the same run still connect, and the newer revision spreads.
        """
        return hashlib.sha256(self.model_copy(update={"revision": 1, "changes": ()}).to_bytes()).digest()

    @property
    def own_code_hint(self) -> str:
        """Hint for people on where the code of a custom run is; empty for other runs."""
        if self.model.kind != "custom":
            return ""
        return "ask the run's owner for its code" if self.code is None else f"its code is at {self.code}"

    def differences(self, other: RunManifest) -> list[str]:
        """Return a phrase for each field that differs in `other`, e.g. "averaging.codec is 'int8', not 'int4'"."""
        mine, theirs = (_flat(manifest.model_dump(mode="json")) for manifest in (self, other))
        return [
            f"{name} is {shown(theirs.get(name))}, not {shown(mine.get(name))}"
            for name in mine | theirs
            if mine.get(name) != theirs.get(name)
        ]

    @classmethod
    def from_bytes(cls, data: bytes, *, takes_part: bool = True) -> RunManifest:
        """Read canonical bytes, which may come from a stranger.

        Args:
            takes_part: whether the caller joins the run. False, for a caller that only shows or exports the model,
                accepts any rules.

        Raises:
            UnknownRules: this software does not support the run's rules.
            ValueError: the bytes are too long or not canonical JSON, or a field is unknown, missing, of the wrong type
                or out of range; the message names the field.
        """
        if len(data) > MAX_MANIFEST_BYTES:
            raise ValueError(f"manifest of {len(data)} bytes; expected at most {MAX_MANIFEST_BYTES}.")
        try:
            # UTF-8 only: json would guess UTF-16 from the bytes themselves.
            parsed = json.loads(data.decode(), parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"manifest is not JSON ({type(error).__name__}); expected a JSON object.") from error
        manifest = cls._validated(parsed, takes_part)
        if manifest.to_bytes() != data:
            raise ValueError(
                "manifest is not in canonical form; expected every field once, sorted keys, no spaces; a different "
                "software version probably wrote it."
            )
        return manifest

    @classmethod
    def load_toml(cls, path: str | Path, *, name: str | None = None) -> RunManifest:
        """Read a run file for `peer init`; `name` overrides the name in the file.

        Raises:
            UsageFault: the file cannot be read, is not TOML, or a field is wrong; the message names the field.
        """
        try:
            return cls.from_fields(run_file_fields(path, name=name))
        except ValueError as error:
            raise UsageFault(f"{path}: {error}") from error

    @classmethod
    def from_fields(cls, fields: object) -> RunManifest:
        """Check fields and sections given as plain values, such as the content of a TOML or JSON file.

        Raises:
            UnknownRules: this software does not support the run's rules.
            ValueError: a field is unknown, missing, of the wrong type or out of range; the message names the field.
        """
        return cls._validated(fields)

    @classmethod
    def _validated(cls, fields: object, takes_part: bool = True) -> RunManifest:
        # A run with different rules may have unknown fields; the number of the rules explains them.
        rules = _rules_in(fields)
        if takes_part and rules is not None and rules != RULES:
            raise UnknownRules(rules)
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            if rules is not None and rules != RULES:
                raise UnknownRules(rules) from error
            raise ValueError(explain(error, cls)) from error


def run_file_fields(path: str | Path, *, name: str | None = None) -> dict[str, Any]:
    """Return the fields of a run file, unchecked, in the form that `RunManifest.from_fields` accepts.

    Raises:
        UsageFault: the file cannot be read, is not TOML, or sets no field, for example because it was cut off.
    """
    fields = read_toml(path, "run file")
    if not fields:
        raise UsageFault(f"{path} sets no field; expected a run file; `peer init --example` prints an example.")
    return fields if name is None else fields | {"name": name}


def manifest_hash(data: bytes) -> bytes:
    """Return `RunManifest.hash` (32 bytes) of signed bytes, or SHA-256 of unreadable bytes from other software."""
    try:
        return RunManifest.from_bytes(data, takes_part=False).hash
    except ValueError:
        return hashlib.sha256(data).digest()


def manifest_rules(data: bytes) -> int:
    """Return the number of the rules in signed bytes, even if this software cannot read the rest; 0 without it."""
    try:
        return _rules_in(json.loads(data)) or 0
    except (ValueError, RecursionError):
        return 0


def _rules_in(fields: object) -> int | None:
    rules = fields.get("rules") if isinstance(fields, dict) else None
    return rules if type(rules) is int and 0 < rules <= MAX_WHOLE_NUMBER else None


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
