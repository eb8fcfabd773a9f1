"""What all sections of a manifest have in common, and how fields come to a form that is in use."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue, SerializerFunctionWrapHandler, model_serializer
from pydantic.fields import FieldInfo

MAX_WHOLE_NUMBER = 2**53 - 1
"""The largest whole number that every JSON reader, a browser too, reads back exactly."""

WEB_PATTERN = r"^https?://[!-~]{1,200}$"
"""The address of a page. ASCII only, so that no address looks like another one."""
WEB_EXAMPLE = "https://example.org/ (http or https, at most 200 characters of ASCII)"

LINE_OF_TEXT: Final[dict[str, Any]] = {"pattern": r"^[^\p{C}]*$", "examples": ["one line of printable text"]}
"""Rules of a field for people."""
DIGEST: Final[dict[str, Any]] = {"pattern": "^[0-9a-f]{64}$", "examples": ["64 lower-case hexadecimal digits"]}
"""Rules of a field with a digest of 32 bytes."""

_LATER: dict[str, JsonValue] = {"later": True}


class Section(BaseModel):
    """A part of a manifest, or of another file that is read strictly: frozen, and nothing in it is guessed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unset = [
            name
            for name, field in type(self).model_fields.items()
            if is_later(field) and getattr(self, name) == field.default
        ]
        return self._written({name: value for name, value in handler(self).items() if name not in unset})

    def _written(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Those of its fields that are written, given all but the `later` ones that have their default."""
        return fields


def later(default: Any, **rules: Any) -> Any:
    """A field that came after the form of the manifest: with its default it is not written.

    So older runs keep their bytes and hash. Software that does not know the field refuses a manifest which sets it.
    """
    return Field(default=default, json_schema_extra=_LATER, **rules)


def is_later(field: FieldInfo) -> bool:
    """Whether a field was made by `later`."""
    return field.json_schema_extra == _LATER
