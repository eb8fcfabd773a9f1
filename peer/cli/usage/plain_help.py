"""Help that shows first what everybody needs: arguments by their plain name, flags in panels, the rest on request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand

from peer.cli.usage.mistakes import UsageError, without_value, wrong_use

Function = TypeVar("Function", bound=Callable[..., Any])

CONTEXT: Final = {"help_option_names": ["--help", "-h"]}
FIRST: Final = "Options"
"""The panel of flags without another one."""
_PATHS: Final = ("FILE", "DIR", "PATH")
"""What help shows for a flag that takes a path."""
_EXTRA: Final = re.compile(r"\.?\s*\[((?:default: |x[<>]=|[-0-9.]+<=x)[^\[\]]*)\]$")
"""The default and the range that the library puts behind the help of a flag."""
_WORDS: Final = (
    (r"^default: (-?[0-9]+)\.0$", r"default \1"),
    (r"^default: ", "default "),
    (r"^([-0-9.]+)<=x<=([-0-9.]+)$", r"\1 to \2"),
    (r"^x>=", "at least "),
    (r"^x<=", "at most "),
)
ALL: Final = "peer.help_all"
"""Set in a context's `meta` to see the flags of every panel."""


def _in_words(told: str) -> str:
    """What a flag does, with its default and range as people say them: the library's brackets are for programmers."""
    found = _EXTRA.search(told)
    if found is None:
        return told
    said = found[1].split("; ")
    for pattern, words in _WORDS:
        said = [re.sub(pattern, words, one) for one in said]
    return f"{told[: found.start()]}; {', '.join(reversed(said))}."


class PlainCommand(TyperCommand):
    """A command whose help has no marks of the library around the names of its arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As of any command; an empty path, which would be the working folder, is a mistake.

        So is a flag where the value of another one should stand, which the library would take for that value.
        """
        flags = {name for one in self.params if getattr(one, "metavar", None) in _PATHS for name in one.opts}
        options: list[Any] = [one for one in self.get_params(ctx) if one.param_type_name == "option"]
        valued = {name for one in options if not one.is_flag for name in one.opts}
        names = {name for one in options for name in (*one.opts, *one.secondary_opts) if name.startswith("--")}
        takes_text = any(one.metavar == "TEXT" for one in self.params if one.param_type_name == "argument")
        for flag, value in pairwise(["", *args]):
            if flag in flags and not value.strip():
                raise UsageError(f"{flag} is empty; expected the path of a file or folder", ctx)
            if not value and not flag.startswith("-") and not (takes_text and flag):
                raise UsageError("One word is empty, as of a shell variable that is not set; expected none", ctx)
            if flag in valued and value in names:
                raise without_value(flag, ctx, value)
        try:
            return super().parse_args(ctx, args)
        except UsageError as mistake:
            if mistake.ctx is not None:
                raise
            raise wrong_use(mistake, ctx) from mistake

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`NAME` where it is needed, `[RUN]` where it may be left out."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then flags panel by panel."""
        parameters: list[Any] = self.get_params(ctx)
        arguments = [
            (one.metavar or one.name, one.help or "") for one in parameters if one.param_type_name == "argument"
        ]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        panels: dict[str, list[tuple[str, str]]] = {FIRST: []}
        for one in parameters:
            row = None if one.param_type_name == "argument" else one.get_help_record(ctx)
            if row is not None:
                panels.setdefault(self.panel_of(one.name), []).append((row[0], _in_words(row[1])))
        self._write_panels(panels, ctx, formatter)

    def panel_of(self, name: str) -> str:
        """The panel that the flag with this name stands in."""
        return FIRST

    def _write_panels(self, panels: Mapping[str, list[tuple[str, str]]], ctx: Any, formatter: Any) -> None:
        for title, rows in panels.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class PanelledCommand(PlainCommand):
    """A command with so many flags that `--help` shows the first panel, and `--help-all` every one."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Those of the command, and `--help-all`."""
        return [*super().get_params(ctx), _help_all()]

    def _write_panels(self, panels: Mapping[str, list[tuple[str, str]]], ctx: Any, formatter: Any) -> None:
        if ctx.meta.get(ALL):
            super()._write_panels(panels, ctx, formatter)
            return
        super()._write_panels({FIRST: panels[FIRST]}, ctx, formatter)
        hidden = {title: len(rows) for title, rows in panels.items() if title != FIRST}
        counts = ", ".join(f"{title} ({count})" for title, count in hidden.items())
        formatter.write_paragraph()
        formatter.write_text(f"{sum(hidden.values())} more flags with --help-all: {counts}.")


def _help_all() -> Any:
    def show(ctx: typer.Context, is_asked: bool) -> None:
        if is_asked and not ctx.resilient_parsing:
            ctx.meta[ALL] = True
            typer.echo(ctx.get_help())
            raise typer.Exit

    def command(
        help_all: bool = typer.Option(
            False, "--help-all", is_eager=True, expose_value=False, callback=show, help="Show every flag and exit."
        ),
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(command)
    return typer.main.get_command(app).params[0]


class Commands(typer.Typer):
    """Where commands are registered: each of them has plain help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"add_completion": False, "rich_markup_mode": None, **settings})

    def command(  # type: ignore[override]
        self, name: str | None = None, *, cls: type[TyperCommand] = PlainCommand, epilog: str = "", short_help: str = ""
    ) -> Callable[[Function], Function]:
        """As typer's, for a `PlainCommand`."""
        return super().command(name, cls=cls, epilog=epilog or None, short_help=short_help or None)
