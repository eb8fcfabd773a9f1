"""The base class of all sections of a manifest."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

MAX_WHOLE_NUMBER = 2**53 - 1
"""The largest integer that every JSON reader, including a browser, reads exactly."""

WEB_PATTERN = r"^https?://[!-~]{1,200}$"
"""Pattern of a page's address. ASCII only, so that two addresses cannot look alike."""
WEB_EXAMPLE = "https://example.org/ (http or https, at most 200 characters of ASCII)"

LINE_OF_TEXT: Final[dict[str, Any]] = {"pattern": r"^[^\p{C}]*$", "examples": ["one line of printable text"]}
"""Pattern and examples of a field with text for people."""
DIGEST: Final[dict[str, Any]] = {"pattern": "^[0-9a-f]{64}$", "examples": ["64 lower-case hexadecimal digits"]}
"""Pattern and examples of a field with a digest of 32 bytes."""


class Section(BaseModel):
    """Base class of a part of a manifest, or of another file that is read strictly: frozen, without conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return self._written(handler(self))

    def _written(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields to write: all fields, unless a subclass overrides this method."""
        return fields
