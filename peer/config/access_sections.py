"""The manifest's sections on access, and on changes that the owner makes during the run."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from dht.identity.keys import public_key_of
from peer.config.section import LINE_OF_TEXT, MAX_WHOLE_NUMBER, WEB_EXAMPLE, WEB_PATTERN, Section

MAX_MEMBERS = 150
"""Maximum number of keys in one list. A key takes 55 bytes, so the manifest stays below its limit; larger runs use
invites."""
MAX_CHANGES = 64
MAX_NOTES = 16
"""Number of notes that are kept; an additional note replaces the oldest note."""
MAX_NOTE_LENGTH = 120
"""In characters. Sixteen notes take 2 of the manifest's 12 KiB, or 8 KiB if each character has four bytes."""


def _checked(keys: tuple[str, ...]) -> tuple[str, ...]:
    for key in keys:
        public_key_of(key)
    if len(set(keys)) < len(keys):
        raise ValueError("the same key is listed twice; list it once")
    return keys


Keys = Annotated[tuple[str, ...], Field(strict=False, max_length=MAX_MEMBERS), AfterValidator(_checked)]
"""PeerIds, each once."""


def is_serial(revoked: str) -> bool:
    """Return whether an entry of `revoke` is the serial number of an invite instead of a key."""
    return re.fullmatch("[0-9a-f]{16}", revoked) is not None


def _checked_revoked(entries: tuple[str, ...]) -> tuple[str, ...]:
    _checked(tuple(entry for entry in entries if not is_serial(entry)))
    return entries


Revoked = Annotated[tuple[str, ...], Field(strict=False, max_length=MAX_MEMBERS), AfterValidator(_checked_revoked)]
"""PeerIds, each once, and serial numbers of invites: 16 hexadecimal digits."""


class AccessSection(Section):
    """The keys that may join the run."""

    mode: Literal["open", "allowlist", "invite"] = Field(
        default="open",
        description="open: every key may join; allowlist: only the listed keys; invite: the listed keys, and people "
        "with an invite from the owner",
    )
    members: Keys = Field(default=(), description="the listed keys, as PeerIds")


class ChangeSection(Section):
    """A change that the owner makes in a live run; see `RunManifest.changes`."""

    at_version: int = Field(
        ge=0,
        le=MAX_WHOLE_NUMBER,
        description="anchor version from which the change applies. For outer_lr, each fragment compares its own "
        "version; for all other fields, the lowest version of all fragments decides. 0: at once",
    )
    admit: Keys = Field(default=(), description="keys that are added to the listed keys")
    revoke: Revoked = Field(
        default=(), description="keys that may no longer join, and serial numbers of invites that are no longer valid"
    )
    outer_lr: float | None = Field(default=None, gt=0, le=10, description="new outer learning rate (eta)")
    minimum_software: str | None = Field(
        default=None,
        pattern=r"^[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}(\.dev)?$",
        examples=["0.2.0"],
        description="oldest software version that may take part",
    )
    ends_run: bool = Field(default=False, description="ends the run: each peer saves its state, leaves and stops")
    note: str = Field(
        default="",
        max_length=MAX_NOTE_LENGTH,
        pattern=LINE_OF_TEXT["pattern"],
        examples=LINE_OF_TEXT["examples"],
        description="note of the organiser that the run's page shows beside the loss curve",
    )
    noted_at: int | None = Field(
        default=None, ge=0, le=MAX_WHOLE_NUMBER, description="time at which the note was written, in unix seconds"
    )
    page: str | None = Field(
        default=None,
        pattern=f"({WEB_PATTERN})|^$",
        examples=[WEB_EXAMPLE],
        description="new address of the run's page, from `peer dashboard`; applies at once. Empty: the run no longer "
        "has a page",
    )
    cooldown_from: int | None = Field(
        default=None,
        ge=0,
        le=MAX_WHOLE_NUMBER,
        description="number of tokens committed by the swarm at which the inner learning rate begins to fall",
    )
    cooldown_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_WHOLE_NUMBER,
        description="number of committed tokens over which the inner learning rate falls linearly to a tenth of its "
        "peak. If there are several cool-downs, the last one applies",
    )

    def _written(self, fields: dict[str, Any]) -> dict[str, Any]:
        # Most changes set one field, and 64 of them have to fit into a manifest.
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        return {name: value for name, value in fields.items() if getattr(self, name) != defaults[name]}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.cooldown_from is None) != (self.cooldown_tokens is None):
            raise ValueError("only one of cooldown_from and cooldown_tokens is given; expected both")
        if bool(self.note) != (self.noted_at is not None):
            raise ValueError("only one of note and noted_at is given; expected both")
        return self
