"""Events as JSON lines: the log of a peer, from which `peer logs` and the panel read."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from averaging.rounds import round_facts
from averaging.rounds.round_facts import Fact
from dht.ground.fields import refuse_constant
from peer.events import anchor_events, path_events, peer_events
from peer.events.peer_events import Event

SCHEMA = 1
"""Version of the JSON form.

The version stays the same when a kind of event, or a field with a default, is added or removed: readers of a log skip
unknown kinds and ignore unknown fields. Any other change raises the version.
"""

MAX_LINE_BYTES = 256 * 1024
"""Maximum length of a line. A commit with a thousand contributors needs about 60 kB."""

EVENT_TYPES: dict[str, type[Fact]] = {
    name: kind
    for module in (round_facts, peer_events, anchor_events, path_events)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Fact) and not kind.__subclasses__()
}
"""Name in the log -> class of the fact."""

# Annotations are text (PEP 563), and few. Resolving them would build typing objects only to take them apart again.
_FIELDS = {
    name: {
        field.name: (str(field.type), field.default is not dataclasses.MISSING) for field in dataclasses.fields(kind)
    }
    for name, kind in EVENT_TYPES.items()
}
"""Name of the fact -> its fields, each with its annotation and whether the field is optional."""
_ENVELOPE = {"at": ("float", False), "peer_id": ("PeerId", False)}


def to_json(event: Event) -> str:
    """Return the event as one line of JSON without a newline.

    The keys are ``schema``, ``event``, ``at``, ``peer_id`` and the fields of the fact. Infinity and NaN become null,
    because JSON cannot express them.
    """
    name = type(event.fact).__name__
    fields: dict[str, Any] = {"schema": SCHEMA, "event": name, "at": event.at, "peer_id": event.peer_id}
    fields.update((field, getattr(event.fact, field)) for field in _FIELDS[name])
    for field, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            fields[field] = None
    return json.dumps(fields, separators=(",", ":"), allow_nan=False)


def from_json(line: str | bytes) -> Event:
    """Read a line that `to_json` wrote; ignore fields of newer software, and read a null number as NaN.

    Raises:
        ValueError: the line is not an event; the message names the event and the field.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"the event line has {len(line)} bytes; expected at most {MAX_LINE_BYTES}")
    try:
        fields = json.loads(line, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError("the event line is not JSON; expected one object per line") from error
    if not isinstance(fields, dict):
        raise ValueError("the event line is not a JSON object; expected one object per line")
    if fields.get("schema") != SCHEMA:
        raise ValueError(
            f"the event line has schema {fields.get('schema')!r}; expected {SCHEMA}: read it with newer software"
        )
    name = fields.get("event")
    if not isinstance(name, str) or name not in EVENT_TYPES:
        raise ValueError(f"the event line has the unknown kind {name!r}; expected one of {', '.join(EVENT_TYPES)}")
    values: dict[str, Any] = {}
    for field, (kind, is_optional) in (_ENVELOPE | _FIELDS[name]).items():
        if field in fields:
            values[field] = _checked(fields[field], kind, f"{name}.{field}")
        elif not is_optional:
            raise ValueError(f"{name} lacks the field {field}")
    return Event(values.pop("at"), values.pop("peer_id"), EVENT_TYPES[name](**values))


def _checked(value: Any, kind: str, where: str) -> Any:
    one, _, or_none = kind.partition(" | ")
    if value is None and (or_none or one == "float"):
        return None if or_none else math.nan
    match one:
        case "int" | "bool" if type(value).__name__ == one:
            return value
        case "str" | "PeerId" if isinstance(value, str):
            return value
        case "float" if type(value) in (int, float) and abs(value) < 1e300:
            return float(value)
        case "tuple[int, ...]" if isinstance(value, list) and all(type(item) is int for item in value):
            return tuple(value)
        case "tuple[PeerId, ...]" | "tuple[str, ...]" if isinstance(value, list) and all(
            isinstance(item, str) for item in value
        ):
            return tuple(value)
    raise ValueError(f"{where} is {ascii(value)[:60]}; expected {kind.replace('tuple', 'list')}")
