"""Generates the pages of docs/ whose content is in the code: commands, manifest, events, library.

    python -m docs.generate            writes all pages
    python -m docs.generate --check    lists the pages that differ from the code, and exits with code 1 if there are any

Each page is derived from the code: the command tree, the fields of a model, docstrings. So a new flag, field or event
needs no line here.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTE = "<!-- Made by `make docs` from {source}: change that, not this page. -->"
CODE_COLUMNS = 100
"""Maximum width of a signature."""


def table(head: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table; a cell may contain any text without line breaks."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return (
        "\n".join("| " + " | ".join(line) + " |" for line in [head, tuple("---" for _ in head), *escaped])
        .replace("| --- ", "|---")
        .replace("--- |", "---|")
    )


def prose(text: str) -> str:
    """Return one paragraph, wrapped like the hand-written pages."""
    return textwrap.fill(one_line(text), 120, break_long_words=False, break_on_hyphens=False)


def one_line(text: str | None) -> str:
    """Return a docstring as one line."""
    return " ".join((text or "").split())


def sentence_of(text: str) -> str:
    """Return the text as a sentence, with a capital at the start and a full stop at the end."""
    return text if not text else text[0].upper() + text[1:].rstrip(".") + "."


def docs_under(tree: ast.Module | ast.ClassDef) -> dict[str, str]:
    """Return, for each assigned name, the docstring under the assignment, as one line."""
    found = {}
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        else:
            continue
        value = following.value if isinstance(following, ast.Expr) else None
        text = value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
        found[name] = one_line(text)
    return found


# --- reference/cli.md ---


def commands() -> Iterator[tuple[str, Any]]:
    """Yield ("peer join", its command) for each command, in the order of `peer --help`."""
    from peer.cli.usage.lazy_commands import peer_command

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield name, command
        for word, inner in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {word}", inner)

    yield from walk("peer", peer_command())


def flags_of(command: Any) -> str:
    """Return the flags of a command as one line of text, or "" without flags."""
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    names = [" / ".join([*option.opts, *option.secondary_opts]) for option in options if not option.hidden]
    return ", ".join(f"`{name}`" for name in names)


def cli_page() -> str:
    from peer.cli import app

    exit_codes = inspect.getdoc(app) or ""
    codes = exit_codes.partition("Exit codes:")[2].strip()
    parts = [
        "# Commands",
        prose(
            "This page lists each command with its flags; `peer COMMAND --help` explains the flags. Each flag of `peer "
            "join` and `peer seed` is also a key of the TOML file for `--config FILE`: `--upload-limit-mbit 10` "
            "corresponds to `upload_limit_mbit = 10`. A flag overrides the file. RUN is a run's id, the address of its "
            "page, its `murmuration://` link, or the name of a run that this machine joined before."
        ),
        f"Exit codes:\n\n{codes}",
    ]
    for name, command in commands():
        parts += [f"## {name}", prose(command.get_short_help_str(limit=200)), prose(flags_of(command))]
    return "\n\n".join(filter(None, parts))


# --- organiser/manifest.md ---


def value_text(value: object) -> str:
    """Return a default in the form of a TOML file."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value is None:
        return "absent"
    if value == ():
        return "`[]`"
    return f"`{value}`" if value != "" else '`""`'


def default_of(field: Any) -> str:
    if field.is_required():
        return "required"
    return value_text(field.default) if field.default_factory is None else "see there"


SHORTER = (
    ("a list of texts", "a list"),
    ("from 0 to 9007199254740991", "0 or more"),
    ("a whole number from ", "integer, "),
    ("a whole number ", "integer, "),
    ("a finite number from ", "number, "),
    ("a finite number ", "number, "),
    ("true or false", "boolean"),
)
"""Words of error sentences, and their shorter form for a table."""


def expected_of(field: Any) -> str:
    """Describe the values that a field accepts: choices and bounds, or examples if the field has a pattern."""
    from peer.config.validation_sentences import expectation

    has_pattern = any(getattr(rule, "pattern", None) for rule in field.metadata)
    text = " or ".join(map(str, field.examples)) if has_pattern and field.examples else expectation(field)
    for longer, shorter in SHORTER:
        text = text.replace(longer, shorter)
    return text


def manifest_page() -> str:
    from pydantic import BaseModel

    from peer.config.access_sections import ChangeSection
    from peer.config.allowed_files import FileSection
    from peer.config.manifest import RunManifest
    from peer.config.validation_sentences import section_of

    def rows_of(model: type[BaseModel], prefix: str = "") -> list[tuple[str, ...]]:
        return [
            (f"`{prefix}{name}`", expected_of(field), default_of(field), sentence_of(field.description or ""))
            for name, field in model.model_fields.items()
            if section_of(field.annotation) is None
        ]

    def sections_of(model: type[BaseModel], prefix: str = "") -> list[tuple[str, type[BaseModel]]]:
        found = []
        for name, field in model.model_fields.items():
            if (section := section_of(field.annotation)) is not None:
                found += [(f"{prefix}{name}", section), *sections_of(section, f"{prefix}{name}.")]
        return found

    head = ("field", "expected", "default", "meaning")
    parts = [
        "# The manifest, field by field",
        prose(
            "This page is for organisers who write a run file. A manifest contains all settings on which the peers of "
            "a run must agree. Write a `run.toml` with the fields that should differ from the defaults. `peer init "
            "NAME --config run.toml` checks the file, adds the defaults and signs the manifest. Sections are TOML "
            "tables: `averaging.sync_every` is `sync_every` under `[averaging]`."
        ),
        "[protocol.md](../contributor/protocol.md#manifest) describes the canonical bytes and the rules for fields.",
        "## Top level",
        table(head, rows_of(RunManifest)),
    ]
    for name, section in sections_of(RunManifest):
        parts += [f"## `[{name}]`", prose(one_line(section.__doc__)), table(head, rows_of(section, f"{name}."))]
    parts += [
        "## Entries of `files`",
        prose(one_line(FileSection.__doc__) + " `peer init --file` writes these entries."),
        table(head, rows_of(FileSection)),
        "## Entries of `changes`",
        one_line(ChangeSection.__doc__) + " `peer manifest edit` writes these entries.",
        table(head, rows_of(ChangeSection)),
    ]
    return "\n\n".join(parts)


# --- developer/events.md ---


def kind_text(kind: Any) -> str:
    """Return the JSON type of a field."""
    kind_name = getattr(kind, "__name__", "")
    if kind_name == "PeerId":
        return "PeerId"
    kind = getattr(kind, "__supertype__", kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if part is type(None) else kind_text(part) for part in arguments)
    if origin is tuple:
        return f"list of {kind_text(arguments[0])}"
    return {str: "text", int: "integer", float: "number", bool: "boolean"}.get(kind, kind_name)


def events_page() -> str:
    from peer.events import event_log

    parts = [
        "# Events",
        prose(
            "This page is for developers who read the events of a peer. A peer writes each event as one line of JSON "
            "to `events.jsonl` in its data folder; `peer join --json` also prints the lines. "
            f"Each line has `schema` ({event_log.SCHEMA}), `event` (one of the names below), `at` (unix seconds) and "
            "`peer_id` (the peer that reports the event). The panel and `peer logs` show a selection of these events."
        ),
        prose(
            "In events about rounds and work, `version` is the fragment's version before the round. In "
            "`AppliedCommit`, `WorkLost` and `AnchorRepair`, `version` is the version that this peer has now."
        ),
    ]
    for name, kind in event_log.EVENT_TYPES.items():
        hints = typing.get_type_hints(kind)
        under = docs_under(typing.cast(ast.ClassDef, ast.parse(inspect.getsource(kind)).body[0]))
        fields = [field.name for field in dataclasses.fields(kind)]
        parts += [f"## `{name}`", prose(kind.__doc__ or "")]
        types_of = [f"`{field}` {kind_text(hints[field])}" for field in fields]
        parts.append(prose(f"Fields: {', '.join(types_of)}."))
        parts.append("\n".join(prose(f"- `{field}`: {under[field]}") for field in fields if under.get(field)))
    return "\n\n".join(filter(None, parts))


# --- developer/library.md ---


def signature_of(function: Any, name: str) -> str:
    """Return the signature of a function, from its source."""
    node = ast.parse(inspect.getsource(function)).body[0]
    assert isinstance(node, ast.FunctionDef)
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    whole = f"{name}({ast.unparse(node.args)}){returned}"
    return textwrap.fill(
        whole,
        CODE_COLUMNS,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def first_words(thing: Any) -> str:
    """Return the first sentence of an object's docstring."""
    return sentence_of(one_line(inspect.getdoc(thing)).partition(". ")[0])


def library_page() -> str:
    import murmuration

    parts = [
        "# The library",
        prose(
            "This page is for developers. It lists all names that your program may import; all other modules may "
            "change between versions. Each name is loaded on first use, so `import murmuration` does not import torch. "
            "[Own loops](own-loop.md) has examples."
        ),
        table(
            ("name", "description"),
            [
                (
                    f"`{name}`",
                    first_words(getattr(murmuration, name)),
                )
                for name in murmuration.__all__
            ],
        ),
    ]
    for name in murmuration.__all__:
        thing = getattr(murmuration, name)
        if not inspect.isfunction(thing) and name not in WITH_MEMBERS:
            continue
        parts += [f"## `{name}`", f"Run `help(murmuration.{name})` for the full description."]
        if inspect.isfunction(thing):
            parts.append(f"```python\n{signature_of(thing, f'murmuration.{name}')}\n```")
        if name in WITH_MEMBERS:
            members = [member for member in vars(thing) if not member.startswith("_")]
            rows = [
                (f"`{member}`", first_words(inspect.getattr_static(thing, member)))
                for member in members
                if callable(getattr(thing, member)) or isinstance(inspect.getattr_static(thing, member), property)
            ]
            parts.append(table(("member", "description"), rows))
    parts.append(
        prose(
            "Programs in other languages can run the commands: most accept `--json`, and the exit codes are "
            "[stable](../reference/cli.md). The [dashboard's API](../organiser/dashboard.md#api) is versioned. An "
            "exported model is a safetensors file and a `config.json`."
        )
    )
    return "\n\n".join(parts)


WITH_MEMBERS = ("Swarm",)
"""Classes whose methods a user's program calls."""


# --- all of them ---

PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "docs/reference/cli.md": ("peer/cli", cli_page),
    "docs/organiser/manifest.md": ("peer/config/manifest.py", manifest_page),
    "docs/developer/events.md": ("averaging/rounds/round_facts.py and peer/events", events_page),
    "docs/developer/library.md": ("murmuration", library_page),
}


def page(path: str) -> str:
    """Return the whole text of a generated page."""
    source, make = PAGES[path]
    return f"{NOTE.format(source=source)}\n\n{make()}\n"


def main() -> int:
    differ = []
    for path in PAGES:
        text, file = page(path), ROOT / path
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        differ.append(path)
        if "--check" not in sys.argv[1:]:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    print("\n".join(differ) or "All pages say what the code says.")
    return 1 if differ and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
