"""What all sections of a manifest have in common."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

MAX_WHOLE_NUMBER = 2**53 - 1
"""The largest whole number that every JSON reader, a browser too, reads back exactly."""

WEB_PATTERN = r"^https?://[!-~]{1,200}$"
"""The address of a page. ASCII only, so that no address looks like another one."""
WEB_EXAMPLE = "https://example.org/ (http or https, at most 200 characters of ASCII)"

LINE_OF_TEXT: Final[dict[str, Any]] = {"pattern": r"^[^\p{C}]*$", "examples": ["one line of printable text"]}
"""Rules of a field for people."""
DIGEST: Final[dict[str, Any]] = {"pattern": "^[0-9a-f]{64}$", "examples": ["64 lower-case hexadecimal digits"]}
"""Rules of a field with a digest of 32 bytes."""


class Section(BaseModel):
    """A part of a manifest, or of another file that is read strictly: frozen, and nothing in it is guessed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return self._written(handler(self))

    def _written(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return those of its fields that are written: all, unless a section says otherwise."""
        return fields
