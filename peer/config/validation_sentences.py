"""Validation errors as sentences: the field, the given value, the expected values, and the nearest known name."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from dht.ground.errors import UsageFault, reading
from dht.ground.regular_files import read_regular
from peer.config.retired_fields import RETIRED_FIELDS

MAX_TOML_BYTES = 1 << 20
"""Far above the size of any run file, configuration or profile; avoids reading a whole model by mistake."""

MAX_SHOWN_CHARACTERS = 60
"""Maximum length of a quoted value: long enough to recognise it, too short to flood a terminal."""


def explain(error: ValidationError, model: type[BaseModel], name_of: Callable[[str], str] = str) -> str:
    """Return one sentence for each mistake, in the order in which pydantic found the mistakes, joined by spaces.

    Args:
        error: the error from validating a mapping against `model`.
        model: the outermost model; the fields' annotations lead to the sections.
        name_of: returns the name of a field that the reader uses, e.g. a command line flag.
    """
    details = error.errors(include_url=False)
    # A default that depends on a wrong field fails as a consequence, and is not a separate mistake.
    faults = [detail for detail in details if detail["type"] != "default_factory_not_called"]
    return " ".join(dict.fromkeys(_sentence(dict(detail), model, name_of) for detail in faults))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`, or None if no name is similar."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def shown(value: object) -> str:
    """Return `value` as a message quotes it: printable, on one line, cut to `MAX_SHOWN_CHARACTERS`."""
    if isinstance(value, Mapping):
        return "a section"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 192:
        return f"a whole number of {value.bit_length()} bits"
    text = ascii(value[: MAX_SHOWN_CHARACTERS + 1]) if isinstance(value, str) else ascii(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 3] + "..."


def expectation(field: FieldInfo) -> str:
    """Describe the values that a field accepts: type, choices and bounds."""
    choices = _choices(field.annotation)
    if len(choices) == 1:
        return choices[0]
    if choices:
        return "one of " + ", ".join(choices)
    words = _TYPE_WORDS.get(plain_type(field.annotation), "another value")
    rules = {
        name: value
        for rule in field.metadata
        for name in ("ge", "le", "gt", "lt", "max_length")
        if (value := getattr(rule, name, None)) is not None
    }
    if "ge" in rules and "le" in rules:
        joined = f"from {rules['ge']} to {rules['le']}"
    else:
        bounds = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
        joined = " and ".join(f"{word} {rules[name]}" for name, word in bounds.items() if name in rules)
    extra = ""
    if "max_length" in rules:
        unit = "entries" if plain_type(field.annotation) is tuple else "characters"
        extra = f" of at most {rules['max_length']} {unit}"
    return f"{words} {joined}".rstrip() + extra


_TYPE_WORDS: dict[object, str] = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "text",
    tuple: "a list of texts",
    Path: "a path",
}


def plain_type(annotation: Any) -> object:
    """Return the type of a field's values, apart from None; for `tuple[str, ...]` and `Literal[...]` the outer type."""
    annotation = next((part for part in _alternatives(annotation) if part is not type(None)), annotation)
    return get_origin(annotation) or annotation


def _choices(annotation: Any) -> list[str]:
    return [
        str(choice) for part in _alternatives(annotation) if get_origin(part) is Literal for choice in get_args(part)
    ]


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the types that a field may have, including None."""
    return get_args(annotation) if get_origin(annotation) in (UnionType, Union) else (annotation,)


def _sentence(detail: dict[str, Any], model: type[BaseModel], name_of: Callable[[str], str]) -> str:
    path = [str(part) for part in detail["loc"]]
    owner, field = _owner_of(path, model)
    name = name_of(".".join(path))
    if detail["type"] == "extra_forbidden":
        return _unknown_name(path, owner, model)
    if detail["type"] == "missing":
        wanted = expectation(field) if field is not None else "a value"
        return f"{shown(name)[1:-1]} is missing; expected {wanted}."
    if detail["type"] == "value_error":
        reason = str(detail["ctx"]["error"])
        sentence = f"{name}: {reason}" if path else reason
        return sentence if sentence.endswith(".") else f"{sentence}."
    got = shown(detail["input"])
    if not path:
        return f"got {got}; expected a table with the fields {', '.join(model.model_fields)}."
    if field is None:
        return f"{name} is {got}; expected {detail['msg']}."
    if detail["type"] == "string_pattern_mismatch" and field.examples:
        return f"{name} is {got}; expected something like {' or '.join(map(str, field.examples))}."
    section, held = section_of(field.annotation), _held_section_of(field.annotation)
    is_named = get_origin(field.annotation) is dict
    if is_named and path[-1] in owner.model_fields:
        return f"{name} is {got}; expected one or more sections [{name}.NAME]."
    if (found := section or held) is not None:
        what = "a section" if section is not None or is_named else "a list of sections"
        return f"{name} is {got}; expected {what} with the fields {', '.join(found.model_fields)}."
    return f"{name} is {got}; expected {expectation(field)}."


def _owner_of(path: list[str], model: type[BaseModel]) -> tuple[type[BaseModel], FieldInfo | None]:
    """Return the innermost section on the path, and the field of that section to which the path leads."""
    owner, field, rest = model, None, deque(path)
    while rest:
        field = owner.model_fields.get(rest.popleft())
        held = None if field is None else _held_section_of(field.annotation)
        if held is not None and rest:
            rest.popleft()  # the section's own name, or its index in a list
        section = held or (None if field is None else section_of(field.annotation))
        if section is None or not rest:
            break
        owner = section
    return owner, field


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field that is a section, optional or not; None for other fields."""
    found = [part for part in _alternatives(annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
    return found[0] if found else None


def _held_section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model of the sections that a field holds, in a mapping or a list; None for other fields."""
    if get_origin(annotation) not in (dict, tuple):
        return None
    return next((found for part in get_args(annotation) if (found := section_of(part)) is not None), None)


def _unknown_name(path: list[str], owner: type[BaseModel], model: type[BaseModel]) -> str:
    unknown = path[-1]
    if (instead := RETIRED_FIELDS.get(".".join(path))) is not None:
        return f"{'.'.join(path)} was removed; {instead}."
    prefix = ".".join(path[:-1])
    found = {name: section_of(field.annotation) for name, field in model.model_fields.items()}
    sections = {name: section for name, section in found.items() if section is not None}
    where = f"a field in {prefix}" if prefix else "a field at the top level" if sections else "a known field"
    start = f"{shown(unknown)[1:-1]} is not {where}"
    # A field under the wrong heading is as common as a misspelt field.
    homes = {"": model} | sections
    for home, section in homes.items():
        if section is not owner and unknown in section.model_fields:
            return f"{start}; it belongs {f'in the section {home}' if home else 'at the top level'}."
    guess = nearest(unknown, owner.model_fields)
    if guess:
        return f"{start}; did you mean {guess}?"
    return f"{start}; known fields: {', '.join(owner.model_fields)}."


FileKind = Literal["run file", "file of a peer's choices"]
_KINDS: dict[FileKind, tuple[str, str]] = {
    "run file": ("[model], [training] and so on", "`peer plan FILE` and `peer init --config FILE`"),
    "file of a peer's choices": ("name, device and so on, without sections", "`peer join RUN --config FILE`"),
}
"""Kind of file -> its typical content, and the commands that accept the file."""


def _kind_of(fields: Mapping[str, Any]) -> FileKind | None:
    """Return the kind of a file, judging by its fields; None if the fields fit no kind."""
    names, tables = fields.keys(), {name for name, value in fields.items() if isinstance(value, dict)}
    if tables & {"model", "data", "training", "averaging", "network", "access"}:
        return "run file"
    return "file of a peer's choices" if names & {"run_id", "device", "data_dir", "listen", "threads"} else None


def read_toml(path: str | Path, kind: FileKind | None = None) -> dict[str, Any]:
    """Read a TOML file, and check that it is of the expected `kind`, if any.

    Raises:
        UsageFault: the file is missing, unreadable, not UTF-8 or not TOML, or is evidently of a different kind.
    """
    import tomllib  # takes as long as all other imports here, and most command lines name no file

    try:
        # Some editors put a byte order mark before the text.
        with reading(path, "a TOML file; check the path."):
            fields = tomllib.loads(read_regular(path, MAX_TOML_BYTES).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageFault(f"{path} is not text; expected a TOML file, or a complete run.record.") from error
    except (ValueError, RecursionError) as error:
        raise UsageFault(f"{path} is not a TOML file ({error}); expected TOML; correct this line.") from error
    found = _kind_of(fields)
    if kind is not None and found not in (None, kind):
        raise UsageFault(f"{path} is a {found}, for {_KINDS[found][1]}; expected a {kind}: {_KINDS[kind][0]}.")
    return fields
