"""What the API takes and gives: one table that checks queries, describes itself as OpenAPI, and is tested on answers.

Types of answers are written as words: ``number``, ``whole``, ``text``, ``flag``, the name of another answer,
``[X]`` for a list, ``X?`` for "or null". Version 1: fields may be added, never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

MAX_PAGE: Final = 500
"""Rows of one answer."""
MAX_OFFSET: Final = 1_000_000
MAX_SEARCH_LENGTH: Final = 80
MAX_POINTS_ASKED: Final = 5000
MAX_NUMBER: Final = 2**53 - 1
PREFIX: Final = "/api/v1"
ID_PATTERN: Final = "[1-9A-HJ-NP-Za-km-z]{1,128}"
"""Base58, as PeerIds and contributor keys are written."""

SORTS: Final = ("tokens", "reported", "rounds", "first", "last", "streak", "name")
AXES: Final = ("time", "tokens", "rounds")


class BadQuery(ValueError):
    """A query parameter is wrong; the text says what was got and what was expected."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter."""

    name: str
    kind: Literal["whole", "text", "choice"]
    description: str
    default: int | str | None = None
    minimum: int = 0
    maximum: int = MAX_NUMBER
    """Of a whole number; of a text, its length."""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of the API; `answer` names a schema, or is empty for other media types."""

    name: str
    path: str
    summary: str
    answer: str
    parameters: tuple[Parameter, ...] = ()
    media_type: str = "application/json"


_LIMIT = Parameter("limit", "whole", "How many rows at most.", 50, 1, MAX_PAGE)

ENDPOINTS: Final = (
    Endpoint("run", "/run", "The run, its swarm and the loss curve.", "Run"),
    Endpoint("peers", "/peers", "Everyone seen lately, without addresses.", "Peers"),
    Endpoint(
        "rounds",
        "/rounds",
        "Where each fragment stands, and rounds, newest first.",
        "Rounds",
        (_LIMIT, Parameter("before", "whole", "Rounds before this number, `next_before` of another answer.")),
    ),
    Endpoint(
        "contributors",
        "/contributors",
        "Contributors with what others witnessed of them.",
        "Contributors",
        (
            Parameter("sort", "choice", "By what; the most first, names from A.", "tokens", choices=SORTS),
            Parameter("search", "text", "Part of a name, an id or a device.", "", 0, MAX_SEARCH_LENGTH),
            _LIMIT,
            Parameter("offset", "whole", "Rows to leave out.", 0, 0, MAX_OFFSET),
        ),
    ),
    Endpoint(
        "contributor",
        "/contributors/{id}",
        "One contributor: machines, curve and newest rounds.",
        "ContributorPage",
    ),
    Endpoint(
        "proof",
        "/contributors/{id}/proof",
        "The signed commits behind a contributor's credit, one JSON object per line.",
        "",
        media_type="application/jsonl",
    ),
    Endpoint("fragments", "/fragments", "How far peers are behind with each fragment.", "Fragments"),
    Endpoint(
        "events",
        "/events",
        "What happened, oldest first.",
        "Events",
        (Parameter("after", "whole", "Events after this number, `next_after` of another answer.", 0), _LIMIT),
    ),
    Endpoint(
        "points",
        "/points",
        "The curves as columns.",
        "Points",
        (
            Parameter("x", "choice", "What the first column is; it ascends.", "time", choices=AXES),
            Parameter("max", "whole", "How many points at most, about.", 1000, 2, MAX_POINTS_ASKED),
        ),
    ),
    Endpoint("export.csv", "/export.csv", "All contributors as a table.", "", media_type="text/csv"),
    Endpoint(
        "export.jsonl",
        "/export.jsonl",
        "The run, all contributors and all rounds, one JSON object per line.",
        "",
        media_type="application/jsonl",
    ),
    Endpoint("openapi", "/openapi.json", "This description.", ""),
)

_HEAD: Final = {
    "schema": "whole",
    "basis": "text",
    "run_id": "text",
    "observed_at": "number",
    "heard_at": "number?",
    "problem": "text?",
}

ANSWERS: Final[Mapping[str, Mapping[str, str]]] = {
    "Run": _HEAD
    | {
        "phase": "text",
        "name": "text?",
        "description": "text?",
        "revision": "whole?",
        "manifest_hash": "text?",
        "watching_since": "number",
        "history_since": "number",
        "num_peers": "whole",
        "num_trainers": "whole",
        "num_rounds": "whole",
        "num_witnessed_rounds": "whole",
        "committed_tokens": "whole",
        "witnessed_tokens": "number",
        "witnessed_milli_tokens": "whole",
        "num_contributors": "whole",
        "num_unverified": "whole",
        "tokens_per_second": "number",
        "held_out_loss": "number?",
        "train_loss": "number?",
        "bandwidth": "Bandwidth",
        "countries": "[Country]",
        "num_country_undeclared": "whole",
        "gaps": "[Gap]",
        "missing_rounds": "[MissingRounds]",
        "storage": "text",
        "storage_problem": "text?",
        "losses": "[Loss]",
    },
    "Bandwidth": {
        "upload_bytes": "number",
        "download_bytes": "number",
        "data_parallel_bytes": "number?",
        "times_less": "number?",
    },
    "Country": {"country": "text", "num_contributors": "whole"},
    "Gap": {"begin_at": "number", "end_at": "number", "reason": "text"},
    "MissingRounds": {"fragment": "whole", "first_version": "whole", "last_version": "whole"},
    "Loss": {
        "at": "number",
        "committed_tokens": "whole",
        "held_out_loss": "number?",
        "train_loss": "number?",
        "num_trainers": "whole",
        "tokens_per_second": "number",
    },
    "Peers": _HEAD | {"num_unlisted": "whole", "num_invalid_records": "whole", "peers": "[Peer]"},
    "Peer": {
        "peer_id": "text",
        "name": "text?",
        "condition": "text",
        "state": "text",
        "role": "text",
        "same_manifest": "flag",
        "device": "text",
        "software": "text",
        "reachable": "flag",
        "inner_steps": "whole",
        "tokens": "whole",
        "rounds_contributed": "whole",
        "tokens_per_second": "number",
        "upload_bits_per_second": "number",
        "download_bits_per_second": "number",
        "train_loss": "number?",
        "held_out_loss": "number?",
        "versions": "[whole]",
        "started_at": "number",
        "first_heard_at": "number",
        "heard_at": "number",
    },
    "Rounds": _HEAD | {"fragments": "[FragmentRow]", "rounds": "[Round]", "next_before": "whole?"},
    "FragmentRow": {
        "fragment": "whole",
        "version": "whole",
        "committed_tokens": "whole",
        "num_peers": "whole",
        "num_current": "whole",
        "largest_lag": "whole",
        "num_forked": "whole",
    },
    "Round": {
        "number": "whole?",
        "fragment": "whole",
        "version": "whole",
        "seen_at": "number",
        "num_rounds": "whole",
        "source": "text",
        "leader": "text?",
        "tokens": "whole?",
        "contributors": "[text]?",
        "num_missed": "whole?",
        "num_void_shards": "whole?",
        "duration_seconds": "number?",
        "drop_reasons": "[DropReason]",
        "lanes": "[Lane]",
    },
    "DropReason": {"reason": "text", "count": "whole"},
    "Lane": {
        "peer_id": "text",
        "started_at": "number",
        "compute_seconds": "number",
        "send_seconds": "number",
        "receive_seconds": "number",
        "apply_seconds": "number",
    },
    "Contributors": _HEAD
    | {
        "num_contributors": "whole",
        "num_found": "whole",
        "num_unverified": "whole",
        "witnessed_tokens": "number",
        "witnessed_milli_tokens": "whole",
        "contributors": "[Contributor]",
        "next_offset": "whole?",
    },
    "Contributor": {
        "contributor_id": "text",
        "rank": "whole",
        "name": "text?",
        "country": "text?",
        "tokens_witnessed": "number",
        "tokens_reported": "number",
        "milli_tokens_witnessed": "whole",
        "milli_tokens_reported": "whole",
        "share": "number",
        "rounds": "whole",
        "rounds_missed": "whole",
        "first_at": "number",
        "last_at": "number",
        "is_here": "flag",
        "streak_days": "whole",
        "machines": "[Machine]",
    },
    "Machine": {
        "peer_id": "text",
        "device": "text",
        "condition": "text",
        "tokens_witnessed": "number",
        "tokens_reported": "number",
        "milli_tokens_witnessed": "whole",
        "milli_tokens_reported": "whole",
        "rounds": "whole",
        "rounds_missed": "whole",
        "first_at": "number",
        "last_at": "number",
        "uptime_seconds": "number",
    },
    "ContributorPage": _HEAD | {"contributor": "Contributor", "curve": "[CurvePoint]", "rounds": "[Round]"},
    "CurvePoint": {
        "at": "number",
        "tokens_witnessed": "number",
        "tokens_reported": "number",
        "milli_tokens_witnessed": "whole",
        "milli_tokens_reported": "whole",
        "rounds": "whole",
    },
    "Fragments": _HEAD | {"fragments": "[Fragment]"},
    "Fragment": {"fragment": "whole", "behind": "[Behind]", "strip": "[Strip]"},
    "Behind": {"peer_id": "text", "versions": "whole"},
    "Strip": {"at": "number", "largest_lag": "whole", "mean_lag": "number", "num_peers": "whole"},
    "Events": _HEAD | {"events": "[Event]", "next_after": "whole"},
    "Event": {
        "number": "whole",
        "at": "number",
        "kind": "text",
        "peer_id": "text?",
        "tokens": "whole",
        "fragment": "whole?",
        "version": "whole?",
    },
    "Points": _HEAD | {"x": "text", "names": "[text]", "columns": "[Column]", "marks": "[Mark]"},
    "Mark": {"at": "number", "committed_tokens": "whole", "kind": "text", "peer_id": "text?"},
    "Problem": {"type": "text", "title": "text", "status": "whole", "detail": "text"},
}
"""Fields of each answer. A ``Column`` is a list of ``number?``."""


def read_query(endpoint: Endpoint, query: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Values of all of an endpoint's parameters, defaults included.

    Raises:
        BadQuery: a parameter is unknown, given twice, or out of range.
    """
    known = {parameter.name: parameter for parameter in endpoint.parameters}
    values: dict[str, Any] = {parameter.name: parameter.default for parameter in endpoint.parameters}
    given: set[str] = set()
    for name, text in query:
        if name == "token":
            continue  # how a private page is opened, see `page_access`
        if name not in known:
            expected = ", ".join(known) or "no parameters"
            raise BadQuery(f"unknown parameter {name[:40]!a}; expected {expected}")
        if name in given:
            raise BadQuery(f"{name} was given twice; expected it once")
        given.add(name)
        values[name] = _read_value(known[name], text)
    return values


def openapi() -> dict[str, Any]:
    """The table as an OpenAPI 3.1 document."""
    problem = {"description": "What is wrong.", "content": {"application/problem+json": {"schema": _ref("Problem")}}}
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        schema = _ref(endpoint.answer) if endpoint.answer else {}
        in_path = [_path_parameter()] if "{id}" in endpoint.path else []
        operation = {
            "operationId": endpoint.name,
            "summary": endpoint.summary,
            "parameters": in_path + [_parameter(parameter) for parameter in endpoint.parameters],
            "responses": {
                "200": {"description": "The answer.", "content": {endpoint.media_type: {"schema": schema}}},
                "304": {"description": "Nothing has changed since the answer with this ETag."},
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
            "description": "Read-only. Times are unix seconds. Fields may be added within version 1, never changed.",
        },
        "paths": paths,
        "components": {"schemas": {name: schema_of(name) for name in ANSWERS}},
    }


def schema_of(name: str) -> dict[str, Any]:
    """JSON schema of an answer."""
    fields = ANSWERS[name]
    return {
        "type": "object",
        "required": list(fields),
        "properties": {field: _schema(word) for field, word in fields.items()},
    }


def _schema(word: str) -> dict[str, Any]:
    if word.endswith("?"):
        return {"oneOf": [_schema(word[:-1]), {"type": "null"}]}
    if word.startswith("["):
        return {"type": "array", "items": _schema(word[1:-1])}
    if word == "Column":
        return {"type": "array", "items": {"type": ["number", "null"]}}
    plain = {"number": "number", "whole": "integer", "text": "string", "flag": "boolean"}.get(word)
    return {"type": plain} if plain else _ref(word)


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _path_parameter() -> dict[str, Any]:
    description = "A contributor's key, or the PeerId of one of its machines."
    schema = {"type": "string", "pattern": f"^{ID_PATTERN}$"}
    return {"name": "id", "in": "path", "required": True, "description": description, "schema": schema}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "minimum": parameter.minimum, "maximum": parameter.maximum}
    if parameter.kind == "text":
        schema = {"type": "string", "maxLength": parameter.maximum}
    elif parameter.kind == "choice":
        schema = {"type": "string", "enum": list(parameter.choices)}
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {"name": parameter.name, "in": "query", "description": parameter.description, "schema": schema}


def _read_value(parameter: Parameter, text: str) -> int | str:
    got = f"{parameter.name} is {text[:40]!a}"
    if parameter.kind == "choice":
        if text not in parameter.choices:
            raise BadQuery(f"{got}; expected one of {', '.join(parameter.choices)}")
        return text
    if parameter.kind == "text":
        if len(text) > parameter.maximum:
            raise BadQuery(f"{parameter.name} has {len(text)} characters; expected at most {parameter.maximum}")
        return text
    is_whole = text.isascii() and text.isdigit() and len(text) <= 16
    if not is_whole or not parameter.minimum <= int(text) <= parameter.maximum:
        raise BadQuery(f"{got}; expected a whole number from {parameter.minimum} to {parameter.maximum}")
    return int(text)
