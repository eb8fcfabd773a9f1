"""The part of the signed manifest that a page shows, even from newer or older software. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from dashboard.observe.strangers_words import label_text
from dht.ground.errors import MurmurationError
from dht.ground.quantities import about, words_text
from dht.records.signed_manifest import RunRecord
from peer.config.access_sections import MAX_NOTE_LENGTH, MAX_NOTES
from peer.config.allowed_files import TOKENIZER_NAME
from peer.config.data_source import HUB, LIBRARY, WEB, needs_own, reads_bytes
from peer.config.learning_rate_schedule import Cooldown, rate_factor
from peer.config.manifest import RunManifest, manifest_hash
from peer.config.model_section import InitSection
from peer.config.training_section import TrainingSection
from peer.plan.usual_home_needs import HomeNeeds, home_needs

ANNOUNCE_SECONDS: Final = 10.0
"""Seconds between two records of one peer until the manifest is known; its default."""
MAX_LINE_LENGTH: Final = 60
Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class RunNote:
    """A note of the organiser beside the curve."""

    at: float
    """Unix seconds."""
    text: str


@dataclass(frozen=True, slots=True)
class ShownManifest:
    """The part of the signed manifest that the page shows."""

    name: str
    description: str
    revision: int
    manifest_hash: bytes
    """SHA-256 of the manifest, 32 bytes."""
    summary: str
    """Model and averaging in one line of technical terms."""
    what: str = ""
    """Description of the model in plain words, without a full stop."""
    announce_seconds: float = ANNOUNCE_SECONDS
    """Seconds between two records of one peer."""
    end_version: int | None = None
    """The version of all fragments at which the run ends; None: its owner has not ended it."""
    is_private: bool = False
    """Whether only members admitted or invited by the owner can join."""
    """Begins with http:// or https://, or empty."""
    page: str = ""
    """Page of the run according to its owner: begins with http:// or https://, or empty."""
    licence: str = ""
    """Unix seconds."""
    goal_tokens: int | None = None
    """Tokens at which the schedule ends; None: it has no end."""
    needs: HomeNeeds | None = None
    """Requirements for a typical household; None: this software cannot compute them."""
    writes: bool = True
    """Whether the model continues texts, so that `peer sample` works."""
    loss_unit: str = "nats per token"
    """Unit of losses, derived from the run's targets; empty if the owner's code decides it."""
    num_choices: int | None = None
    """Number of distinct tokens for each prediction; None: unknown, or unrelated to the loss."""
    trained_on: str = ""
    """Data in words; empty: decided by the owner's code, or unknown."""
    training: TrainingSection | None = None
    """The inner loop; None: this software cannot read it."""
    cooldown: Cooldown | None = None
    """The cool-down that the owner started last, or None."""
    weights: InitSection | None = None
    """Weights from which the run starts or which it keeps fixed, and which are not sent; None: none."""
    flags_to_bring: str = ""
    """See `RunManifest.flags_to_bring`."""
    notes: tuple[RunNote, ...] = ()
    """Oldest first."""
    model_kind: str = "gpt"
    """`custom`: the run trains its owner's code, which `peer join` does not have."""
    code: str = ""
    """Address of that code according to the owner; only displayed."""

    def rate_at(self, tokens: int) -> float | None:
        """Return the share of the peak learning rate at this token count of the run; None: it never changes."""
        if self.training is None or not (self.training.schedule.changes_rate or self.cooldown):
            return None
        return rate_factor(self.training.schedule, tokens, self.cooldown)


def run_facts(record: RunRecord) -> ShownManifest:
    """Return the displayed part of a verified run record, without missing or invalid fields."""
    manifest = json.loads(record.manifest)
    known = _or_none(partial(RunManifest.from_bytes, takes_part=False), record.manifest)
    return ShownManifest(
        name=record.run_id.partition(".")[0],
        description=_line(manifest.get("description"), 500),
        revision=record.revision,
        manifest_hash=manifest_hash(record.manifest),
        summary=" · ".join(_summary(manifest)),
        what=_what(manifest),
        announce_seconds=min(max(_number(manifest, "network", "announce_seconds") or ANNOUNCE_SECONDS, 1.0), 600.0),
        end_version=_end_version(manifest),
        is_private=_field(manifest, "access", "mode") in ("allowlist", "invite"),
        page=_page(manifest),
        licence=_line(manifest.get("licence"), MAX_LINE_LENGTH),
        goal_tokens=_goal_tokens(manifest),
        needs=_or_none(home_needs, known) if known is not None else None,
        writes=_writes(manifest),
        loss_unit=_loss_unit(manifest),
        num_choices=_num_choices(manifest),
        trained_on=_trained_on(manifest),
        training=known.training if known is not None else None,
        cooldown=_cooldown(known) if known is not None else None,
        weights=known.model.init if known is not None else None,
        flags_to_bring=known.flags_to_bring if known is not None and known.model.kind != "custom" else "",
        notes=_notes(manifest),
        model_kind=_kind(manifest),
        code=_line(manifest.get("code"), 400),
    )


def _cooldown(manifest: RunManifest) -> Cooldown | None:
    found = [(each.cooldown_from, each.cooldown_tokens) for each in manifest.changes]
    return next((Cooldown(at, tokens) for at, tokens in reversed(found) if at is not None and tokens), None)


def _field(manifest: dict[str, Any], *names: str) -> Any:
    value: Any = manifest
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _real(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _number(manifest: dict[str, Any], *names: str) -> float | None:
    return _real(_field(manifest, *names))


def _line(value: Any, max_length: int) -> str:
    return label_text(value, max_length) if isinstance(value, str) else ""


def _web_address(value: Any) -> str:
    address = _line(value, 210)
    return address if address.startswith(("http://", "https://")) and address.isascii() else ""


def _changes(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    changes = manifest.get("changes")
    return [change for change in (changes if isinstance(changes, list) else ()) if isinstance(change, dict)]


def _page(manifest: dict[str, Any]) -> str:
    """Return the address of the run's page by the owner's latest change."""
    said = [change["page"] for change in _changes(manifest) if isinstance(change.get("page"), str)]
    return _web_address(said[-1] if said else manifest.get("page"))


def _end_version(manifest: dict[str, Any]) -> int | None:
    ends = [
        change["at_version"]
        for change in _changes(manifest)
        if change.get("ends_run") is True and isinstance(change.get("at_version"), int)
    ]
    return min(ends, default=None)


def _goal_tokens(manifest: dict[str, Any]) -> int | None:
    tokens = _number(manifest, "training", "schedule", "tokens")
    return None if tokens is None or tokens < 1 else int(tokens)


def _or_none(make: Callable[[Given], Made], given: Given) -> Made | None:
    """Return `make(given)`; None if this software cannot compute it, for example from another version's manifest or a
    model that cannot be divided.
    """
    try:
        return make(given)
    except (ValueError, ArithmeticError, LookupError, MurmurationError):
        return None


def _kind(manifest: dict[str, Any]) -> str:
    if _field(manifest, "model", "config") is not None:
        return "hf"
    return "gpt" if _field(manifest, "model", "layout_digest") is None else "custom"


def _writes(manifest: dict[str, Any]) -> bool:
    is_masked = _field(manifest, "model", "mask_token") is not None
    return _kind(manifest) != "custom" and not is_masked


def _what(manifest: dict[str, Any]) -> str:
    noun = "A language model" if _kind(manifest) != "custom" else "A model"
    number = _number(manifest, "model", "num_parameters") or _gpt_parameters(manifest)
    size = f" of about {words_text(about(number))} parameters" if number else ""
    if _field(manifest, "model", "adapter") is not None:
        return f"An adapter{size} for {noun[0].lower()}{noun[1:]}"
    return f"{noun}{size}"


def _notes(manifest: dict[str, Any]) -> tuple[RunNote, ...]:
    found = [
        RunNote(at, text)
        for change in _changes(manifest)
        if (at := _real(change.get("noted_at"))) is not None and (text := _line(change.get("note"), MAX_NOTE_LENGTH))
    ]
    return tuple(sorted(found, key=lambda note: note.at)[-MAX_NOTES:])


def _loss_unit(manifest: dict[str, Any]) -> str:
    if _kind(manifest) == "custom":
        return ""
    source = _field(manifest, "data", "source")
    files = manifest.get("files")
    names = [one.get("name") for one in files if isinstance(one, dict)] if isinstance(files, list) else []
    has_bytes = TOKENIZER_NAME not in names and isinstance(source, str) and reads_bytes(source)
    return "nats per byte" if has_bytes else "nats per token"


def _num_choices(manifest: dict[str, Any]) -> int | None:
    size = _number(manifest, "model", "vocab_size") or 0.0
    return int(size) if size >= 2 and _loss_unit(manifest) in ("nats per byte", "nats per token") else None


def _trained_on(manifest: dict[str, Any]) -> str:
    source = _line(_field(manifest, "data", "source"), 500)
    if _kind(manifest) == "custom":
        return ""
    if source == LIBRARY:
        return "Python's standard library"
    if source.startswith(HUB):
        return f"{source.removeprefix(HUB).partition('@')[0]}, a data set of the Hugging Face hub"
    if source.startswith(WEB):
        return f"data at {urlsplit(source).netloc}"
    return "data of their own" if needs_own(source) else ""


def _gpt_parameters(manifest: dict[str, Any]) -> float | None:
    """Return the parameters of the built-in GPT without its norms: attention and feed-forward of each block, and the
    embedding.
    """
    layers, width = _number(manifest, "model", "num_layers"), _number(manifest, "model", "d_model")
    vocabulary = _number(manifest, "model", "vocab_size") or 0.0
    if layers is None or width is None or _kind(manifest) != "gpt":
        return None
    return 12 * layers * width**2 + vocabulary * width


def _summary(manifest: dict[str, Any]) -> list[str]:
    wanted = (
        ("model", "num_layers", "{} layers"),
        ("model", "d_model", "width {}"),
        ("model", "context", "context {}"),
        ("averaging", "mode", "{}"),
        ("averaging", "codec", "{}"),
        ("averaging", "num_fragments", "{} fragments"),
        ("averaging", "sync_every", "every {} inner steps"),
    )
    parts = []
    for section, name, text in wanted:
        if section == "model" and _kind(manifest) == "custom":
            continue  # older software wrote values that are meaningless for a module from its owner's code
        value = _field(manifest, section, name)
        if isinstance(value, int | str) and not isinstance(value, bool):
            parts.append(text.format(label_text(str(value), 20)))
    return parts
