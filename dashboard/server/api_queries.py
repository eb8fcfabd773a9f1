"""Queries of the API as self-checking models, and the OpenAPI document of all endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

MAX_PAGE: Final = 500
"""Rows of one answer."""
MAX_OFFSET: Final = 1_000_000
MAX_SEARCH_LENGTH: Final = 80
MAX_POINTS_ASKED: Final = 5000
MAX_NUMBER: Final = 2**53 - 1
PREFIX: Final = "/api/v1"
ID_PATTERN: Final = "[1-9A-HJ-NP-Za-km-z]{1,128}"
"""Base58, as PeerIds and contributor keys are written."""


class Problem(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class BadQuery(ValueError):
    """A query parameter is wrong; the text contains the received and the expected value."""


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise ValueError
    return int(text)


_WHOLE: Final = BeforeValidator(_digits)
Number = Annotated[int, Field(ge=0, le=MAX_NUMBER), _WHOLE]
Limit = Annotated[int, Field(ge=1, le=MAX_PAGE, description="Maximum number of rows to return."), _WHOLE]


class Query(BaseModel):
    """The parameters of an endpoint; this base class has none."""


class RoundsQuery(Query):
    limit: Limit = 50
    before: Number | None = Field(
        None, description="Return rounds before this number, the `next_before` of an earlier answer."
    )


class ContributorsQuery(Query):
    sort: Literal["tokens", "reported", "rounds", "first", "last", "name"] = Field(
        "tokens", description="Sort key, in descending order; names in ascending order."
    )
    search: str = Field("", max_length=MAX_SEARCH_LENGTH, description="Part of a name, id or device.")
    limit: Limit = 50
    offset: Annotated[int, Field(ge=0, le=MAX_OFFSET), _WHOLE] = Field(0, description="Rows to skip.")


class PageQuery(ContributorsQuery):
    """Parameters of the page's address: the tab and the search."""

    tab: Literal["overview", "people", "model", "engine-room"] = Field("overview", description="Tab of the page.")
    limit: Limit = 25

    @property
    def is_asking(self) -> bool:
        """Whether the query asks for other people than the ranking shows."""
        asked = self.model_fields_set & set(ContributorsQuery.model_fields)
        return any(getattr(self, name) != type(self).model_fields[name].default for name in asked)


class PointsQuery(Query):
    x: Literal["time", "tokens", "rounds"] = Field("time", description="Quantity in the first column, ascending.")
    max: Annotated[int, Field(ge=2, le=MAX_POINTS_ASKED), _WHOLE] = Field(
        1000, description="Approximate number of points to return at most."
    )
    digits: Annotated[int, Field(ge=3, le=17), _WHOLE] = Field(
        17, description="Significant digits of losses and rates; fewer digits make a smaller answer."
    )


AnyQuery = TypeVar("AnyQuery", bound=Query)


Handler = Callable[[web.Request, Any], Awaitable[web.StreamResponse]]
"""Answers a request with its checked query."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address of the API; `answer` is a model, or None for other media types."""

    name: str
    path: str
    summary: str
    handler: Handler
    answer: type[BaseModel] | None = None
    query: type[Query] = Query
    media_type: str = "application/json"


def read_query(model: type[AnyQuery], query: Iterable[tuple[str, str]]) -> AnyQuery:
    """Return all parameters, including defaults.

    Raises:
        BadQuery: a parameter is unknown, given twice, or out of range.
    """
    given: dict[str, str] = {}
    for name, text in query:
        if name == "token":
            continue  # opens a private page, see `page_access`
        if name not in model.model_fields:
            expected = ", ".join(model.model_fields) or "no parameters"
            raise BadQuery(f"unknown parameter {name[:40]!a}; expected {expected}")
        if name in given:
            raise BadQuery(f"{name} was given twice; expected it once")
        given[name] = text
    try:
        return model.model_validate(given)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise BadQuery(_objection(name, given[name], _parameters(model)[name])) from error


def _objection(name: str, text: str, schema: dict[str, Any]) -> str:
    got = f"{name} is {text[:40]!a}"
    if "enum" in schema:
        return f"{got}; expected one of {', '.join(schema['enum'])}"
    if schema["type"] == "string":
        return f"{name} has {len(text)} characters; expected at most {schema['maxLength']}"
    return f"{got}; expected a whole number from {schema['minimum']} to {schema['maximum']}"


class _Untitled(GenerateJsonSchema):
    """JSON schemas without titles, which would only repeat the field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Return whether a field is required: all fields of an answer are, but no query field with a default."""
        return self.mode == "serialization" or super().field_is_required(field, total)


def _parameters(model: type[Query]) -> dict[str, dict[str, Any]]:
    """Return schemas by parameter, without null, which some have as default but a query cannot contain."""
    found = model.model_json_schema(schema_generator=_Untitled).get("properties", {})
    plain = {name: {**schema.pop("anyOf", [{}])[0], **schema} for name, schema in found.items()}
    return {name: {key: value for key, value in schema.items() if value is not None} for name, schema in plain.items()}


def openapi(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return an OpenAPI 3.1 document."""
    models: list[type[BaseModel]] = [Problem, *(one.answer for one in endpoints if one.answer is not None)]
    references, definitions = models_json_schema(
        [(model, "serialization") for model in models],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Untitled,
    )
    problem = {
        "description": "What is wrong.",
        "content": {"application/problem+json": {"schema": references[Problem, "serialization"]}},
    }
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        schema = references[endpoint.answer, "serialization"] if endpoint.answer is not None else {}
        in_path = [_ID_PARAMETER] if "{id}" in endpoint.path else []
        in_query = [
            {"name": name, "in": "query", "description": schema.pop("description"), "schema": schema}
            for name, schema in _parameters(endpoint.query).items()
        ]
        operation = {
            "operationId": endpoint.name,
            "summary": endpoint.summary,
            "parameters": in_path + in_query,
            "responses": {
                "200": {"description": "The answer.", "content": {endpoint.media_type: {"schema": schema}}},
                "400": problem,
                **({"404": problem} if in_path else {}),
            },
        }
        paths[PREFIX + endpoint.path] = {"get": operation}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Murmuration dashboard",
            "version": "1",
            "description": "Read-only. Times are unix seconds.",
        },
        "paths": paths,
        "components": {"schemas": definitions["$defs"]},
    }


_ID_PARAMETER: Final = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "A contributor's key, or the PeerId of one of its machines.",
    "schema": {"type": "string", "pattern": f"^{ID_PATTERN}$"},
}
