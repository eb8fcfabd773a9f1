"""The `peer` command for typer: a group that imports each command on first use."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dht.ground.errors import EXIT_INTERRUPTED
from peer.cli.usage.commands import COMMANDS, MAX_COLUMNS, help_text
from peer.cli.usage.plain_command import CONTEXT
from peer.console.notices import say
from peer.version import software


class LazyCommands(Mapping[str, Any]):
    """Name -> command; imports `peer/cli/NAME.py` when its command is read."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made and name in COMMANDS:
            app = importlib.import_module(f"peer.cli.{name}").app
            self._made[name] = typer.main.get_command(app)
            self._made[name].name = name
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class LazyGroup(TyperGroup):
    """A group with all of `COMMANDS`, whose help uses only that table."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": {}})
        self.commands: Any = LazyCommands()

    def make_context(self, *positional: Any, **named: Any) -> Any:
        """Do the same as the base class, but print a sentence on Ctrl+C, which the library omits."""
        with _sentence_on_interrupt():
            return super().make_context(*positional, **named)

    def invoke(self, ctx: Any) -> Any:
        """Do the same as the base class, but print a sentence on Ctrl+C."""
        with _sentence_on_interrupt():
            return super().invoke(ctx)

    def get_help(self, ctx: Any) -> str:
        return help_text(ctx.terminal_width).rstrip("\n")


@contextlib.contextmanager
def _sentence_on_interrupt() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say("Interrupted.")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def peer_command() -> Any:
    """Return the `peer` command with all its subcommands."""
    app = typer.Typer(
        name="peer",
        cls=LazyGroup,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={**CONTEXT, "max_content_width": MAX_COLUMNS},
    )
    app.callback()(_options)
    return typer.main.get_command(app)


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(software())
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_tell_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass
