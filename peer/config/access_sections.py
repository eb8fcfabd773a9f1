"""The parts of a manifest that say who may take part, and what its owner changes while the run goes on."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from dht.identity.keys import public_key_of
from peer.config.section import LINE_OF_TEXT, MAX_WHOLE_NUMBER, WEB_EXAMPLE, WEB_PATTERN, Section

MAX_MEMBERS = 150
"""Keys in one list: of 55 bytes each, so that the manifest stays below its limit. Larger runs use invites."""
MAX_CHANGES = 64
MAX_NOTES = 16
"""The newest ones; a further one takes the place of the oldest."""
MAX_NOTE_LENGTH = 120
"""Characters: sixteen of them take two of a manifest's twelve KiB, or eight in letters of four bytes."""


def _checked(keys: tuple[str, ...]) -> tuple[str, ...]:
    for key in keys:
        public_key_of(key)
    if len(set(keys)) < len(keys):
        raise ValueError("the same key is listed twice; list it once")
    return keys


Keys = Annotated[tuple[str, ...], Field(strict=False, max_length=MAX_MEMBERS), AfterValidator(_checked)]
"""PeerIds, each once."""


def is_serial(revoked: str) -> bool:
    """Whether an entry of `revoke` is the serial number of an invite, and not a key."""
    return re.fullmatch("[0-9a-f]{16}", revoked) is not None


def _checked_revoked(entries: tuple[str, ...]) -> tuple[str, ...]:
    _checked(tuple(entry for entry in entries if not is_serial(entry)))
    return entries


Revoked = Annotated[tuple[str, ...], Field(strict=False, max_length=MAX_MEMBERS), AfterValidator(_checked_revoked)]
"""PeerIds, each once, and serial numbers of invites: 16 hexadecimal digits."""


class AccessSection(Section):
    """The keys that may take part."""

    mode: Literal["open", "allowlist", "invite"] = Field(
        default="open", description="everybody; listed keys; listed keys and people with an invite of the owner"
    )
    members: Keys = Field(default=(), description="listed keys, as PeerIds")


class ChangeSection(Section):
    """What the owner changes in a live run, and from when on; see `RunManifest.changes`."""

    at_version: int = Field(
        ge=0,
        le=MAX_WHOLE_NUMBER,
        description="anchor version from which it counts: for outer_lr that of the fragment, for the rest the lowest "
        "of all fragments; 0: at once",
    )
    admit: Keys = Field(default=(), description="keys that are listed")
    revoke: Revoked = Field(
        default=(), description="keys that may not take part any more, and serial numbers of invites that count no more"
    )
    outer_lr: float | None = Field(default=None, gt=0, le=10, description="eta from then on")
    minimum_software: str | None = Field(
        default=None,
        pattern=r"^[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}(\.dev)?$",
        examples=["0.2.0"],
        description="older software is refused",
    )
    ends_run: bool = Field(default=False, description="peers save, say goodbye and stop")
    note: str = Field(
        default="",
        max_length=MAX_NOTE_LENGTH,
        pattern=LINE_OF_TEXT["pattern"],
        examples=LINE_OF_TEXT["examples"],
        description="the organiser's words beside the curve, for people",
    )
    noted_at: int | None = Field(
        default=None, ge=0, le=MAX_WHOLE_NUMBER, description="when the note was written, unix seconds"
    )
    page: str | None = Field(
        default=None,
        pattern=f"({WEB_PATTERN})|^$",
        examples=[WEB_EXAMPLE],
        description="where `peer dashboard` shows the run, at once; empty: nowhere any more",
    )
    cooldown_from: int | None = Field(
        default=None,
        ge=0,
        le=MAX_WHOLE_NUMBER,
        description="committed tokens of the run at which the inner learning rate begins to fall",
    )
    cooldown_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_WHOLE_NUMBER,
        description="tokens of the swarm over which it falls, linearly, to a tenth of the peak; of several "
        "cool-downs the last one counts",
    )

    def _written(self, fields: dict[str, Any]) -> dict[str, Any]:
        # Most changes set one field, and 64 of them have to fit into a manifest.
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        return {name: value for name, value in fields.items() if getattr(self, name) != defaults[name]}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.cooldown_from is None) != (self.cooldown_tokens is None):
            raise ValueError("cooldown_from and cooldown_tokens belong together, and one is missing; give both")
        if bool(self.note) != (self.noted_at is not None):
            raise ValueError("note and noted_at belong together, and one is missing; give both")
        return self
