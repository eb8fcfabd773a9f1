"""Commands of typer with plain help, and the sentence for a mistake in a command line."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand

Function = TypeVar("Function", bound=Callable[..., Any])

UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""The base class of typer's errors for a mistake in a command line."""
CONTEXT: Final = {"help_option_names": ["--help", "-h"]}
_PATHS: Final = ("FILE", "DIR", "PATH")
"""Placeholders of flags whose value is a path."""


def sentence_of(mistake: Any) -> str:
    """Return the sentence for a mistake that typer found, including the command that shows the flags."""
    path = mistake.ctx.command_path if mistake.ctx is not None else "peer"
    # The message of this error would be the whole help.
    is_incomplete = type(mistake).__name__ == "NoArgsIsHelpError"
    text = f"`{path}` needs a subcommand" if is_incomplete else mistake.format_message()
    return text if text.endswith("?") else f"{text.rstrip('.')}; see `{path} --help`."


class PlainCommand(TyperCommand):
    """A command that refuses empty arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does, but refuse an empty path or word, which comes from an unset shell variable."""
        flags = {name for one in self.params if getattr(one, "metavar", None) in _PATHS for name in one.opts}
        takes_text = any(one.metavar == "TEXT" for one in self.params if one.param_type_name == "argument")
        for flag, value in pairwise(["", *args]):
            if flag in flags and not value.strip():
                raise UsageError(f"{flag} is empty; expected the path of a file or folder", ctx)
            if not value and not flag.startswith("-") and not (takes_text and flag):
                raise UsageError("An argument is empty, as from an unset shell variable; expected a value", ctx)
        try:
            return super().parse_args(ctx, args)
        except UsageError as mistake:
            mistake.ctx = mistake.ctx or ctx  # the library omits the context for a flag without its value
            raise


class Commands(typer.Typer):
    """An app that registers commands with plain help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"add_completion": False, "rich_markup_mode": None, **settings})

    def command(  # type: ignore[override]
        self, name: str | None = None, *, cls: type[TyperCommand] = PlainCommand, epilog: str = "", short_help: str = ""
    ) -> Callable[[Function], Function]:
        """Register a `PlainCommand`."""
        return super().command(name, cls=cls, epilog=epilog or None, short_help=short_help or None)
