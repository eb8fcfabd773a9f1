"""What is wrong with a command line, in one sentence: what was got, what is expected, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Any

import typer

from peer.cli.usage.other_tools_words import command_here, flag_here

UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""What typer raises for any mistake in a command line."""

_TYPES = {int: "a whole number", float: "a number", bool: "yes or no"}
_EXAMPLES = {int: "4", float: "2.5"}
ALIKE = 0.6
"""Of equal letters: a slip of the finger or a word for another one, such as --port for --map-ports."""


def sentence_of(mistake: Any) -> str:
    """The sentence for a mistake that typer found."""
    kind = type(mistake).__name__
    path = mistake.ctx.command_path if mistake.ctx is not None else "peer"
    see = f"see `{path} --help`."
    if kind == "NoSuchOption" and mistake.option_name == "-=":
        return f"A flag of one letter takes no value and has one behind `=`; expected it alone; {see}"
    if kind == "NoSuchOption":
        near = _closest(mistake.option_name, mistake.possibilities or ())
        hint = f"did you mean {' or '.join(near)}?" if near else see
        if not near and mistake.ctx is not None and mistake.ctx.parent is None:
            hint = f"flags of a command stand behind it; {see}"
        if ours := flag_here(path.partition(" ")[2], mistake.option_name):
            hint = f"{ours}."
        return f"There is no flag {mistake.option_name} of `{path}`; {hint}"
    if kind == "MissingParameter":
        return f"{_name(mistake.param)} is missing; expected {_wanted(mistake.param)}; {see}"
    if kind == "BadParameter" and mistake.param is not None:
        if found := re.match(r"path '(.*)' is not readable", str(mistake.message)):
            return f"{_name(mistake.param)} {found[1]!a} cannot be read; expected a file or folder that you may read."
        return f"{_name(mistake.param)} is {_got(mistake)}; expected {_expected(mistake)}."
    if kind == "NoArgsIsHelpError":
        return f"`{path}` needs a command of its own; {see}"
    text = mistake.format_message()
    if found := re.match(r"Option '(.*)' does not take a value", text):
        return f"{found[1]} takes no value and has one; expected {found[1]} alone; {see}"
    if found := re.match(r"No such command (.*?)\.(?: Did you mean (.*)\?)?$", text):
        hint = f"Did you mean {found[2]}?" if found[2] else f"See `{path} --help`."
        if ours := command_here(found[1].strip("'")):
            hint = f"{ours[0].upper()}{ours[1:]}."
        if words := getattr(mistake.ctx.command, "commands", {}) if mistake.ctx.parent is not None else {}:
            return f"There is no command {found[1]} of `{path}`; expected {' or '.join(words)}. {hint}"
        return f"There is no command {found[1]}. {hint}"
    if found := re.search(r"unexpected extra arguments?\(?s?\)? \((.*)\)", text):
        return f"{found[1]!a} is more than `{path}` takes; leave it out, or put text with spaces into quotes; {see}"
    if text.startswith("Missing command"):
        return f"`{path}` needs a command of its own; {see}"
    return f"{text.rstrip('.')}; {see}"


def without_value(flag: str, ctx: Any, follows: str = "") -> Any:
    """The mistake of a flag of this command behind which no value stands, but nothing or another flag."""
    parameter = next(one for one in ctx.command.get_params(ctx) if flag in one.opts)
    behind = f", but the flag {follows} behind it" if follows else ""
    return UsageError(f"{flag} has no value{behind}; expected {_wanted(parameter)}", ctx)


def wrong_use(mistake: Any, ctx: Any) -> Any:
    """The mistake of a flag without its value, or with one where it takes none: the library tells not whose flag."""
    flag = mistake.option_name
    if "does not take" in str(mistake.message):
        return UsageError(f"{flag} takes no value and has one; expected {flag} alone", ctx)
    return without_value(flag, ctx)


def _closest(word: str, others: Iterable[str]) -> list[str]:
    """Those that are as like the word as the one that is most like it; none where that has little of the word."""
    bare = word.strip("-")
    likeness = {other: SequenceMatcher(None, bare, other.strip("-")).ratio() for other in others}
    most = max(likeness.values(), default=0.0)
    return sorted(other for other, ratio in likeness.items() if ratio == most >= ALIKE)


def _name(parameter: Any) -> str:
    return str(parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name)


def _wanted(parameter: Any) -> str:
    what = (parameter.help or "a value").rstrip(".")
    about = f"{what[0].lower()}{what[1:]}"
    return about if parameter.param_type_name == "argument" else f"{_name(parameter)} {parameter.metavar} ({about})"


def _got(mistake: Any) -> str:
    """The value, where the library tells it."""
    errors = getattr(mistake.__cause__, "errors", None)
    if errors is not None and (details := errors()):
        return ascii(details[0].get("input"))[:80]
    return "not a value of its kind"


def _expected(mistake: Any) -> str:
    parameter = mistake.param
    descriptor = getattr(parameter, "type_descriptor", None)
    kind = getattr(descriptor, "annotation", None)
    kind = kind if kind in _TYPES else None
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if kind is None:
        return str(mistake.message).rstrip(".")
    words = _TYPES[kind]
    if low is not None and high is not None:
        return f"{words} from {low:g} to {high:g}" if high < 10**6 else f"{words} from {low:g} to {high}"
    if low is not None:
        return f"{words} of at least {low:g}"
    return f"{words} such as {_EXAMPLES.get(kind, '')}"
