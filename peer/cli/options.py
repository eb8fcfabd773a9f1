"""Flags generated from the fields of `PeerConfig`, and flags that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dht.ground.errors import UsageFault
from peer.cli.usage.plain_command import PlainCommand

Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="The run: its id, the address of its page, its murmuration:// link, or the name of a run joined here.",
        show_default=False,
    ),
]
RunId = Annotated[str | None, typer.Option("--run-id", metavar="RUN", help="The run: NAME.FINGERPRINT.")]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peers", metavar="MULTIADDR...", help="Addresses of members to dial first; one or more."),
]
DataDir = Annotated[str | None, typer.Option("--data-dir", metavar="DIR", help="Folder for key, checkpoints and logs.")]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="A peer.toml with the same options; flags override it.")
]
IdentityFile = Annotated[
    str | None, typer.Option("--identity", metavar="FILE", help="Key file of this peer; created if it is missing.")
]
InviteFile = Annotated[
    str | None,
    typer.Option("--invite", metavar="FILE", help="An invite to a private run; - reads it from standard input."),
]
ContributorKey = Annotated[
    str | None,
    typer.Option("--contributor-key", metavar="FILE", help="Key file of the person who gets credit."),
]
LookTimeout = Annotated[
    float, typer.Option("--timeout", min=0.1, max=3600, metavar="SECONDS", help="How long to look for members.")
]
ModelPath = Annotated[Path | None, typer.Option("--model", metavar="PATH", help="A folder that `peer export` wrote.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="DIR", help="Data folder of a local peer, instead of live members."),
]
ModelDevice = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]
AsPlain = Annotated[
    bool, typer.Option("--plain", help="Print plain lines instead of the panel: news, and a line every 30 s.")
]
Backend = Annotated[
    str | None,
    typer.Option(
        "--host-backend", metavar="NAME", help="libp2p or p2pd; default: libp2p, which needs no daemon, if installed."
    ),
]
PAGE_PORT: Final = 8080
"""Default port of a page on this machine."""
Port = Annotated[
    int, typer.Option("--port", min=0, max=65_535, metavar="N", help="Port of the page; 0 uses a free port.")
]


NO_RUN: Final = "any.aaaaaaaaaaaaaaaaaaaa"
"""Placeholder for the run id if no run is given; never used for a search."""


def output_of(as_json: bool, plain: bool) -> str | None:
    """Return the kind of output, or None if the terminal decides."""
    if as_json and plain:
        raise UsageFault("--json and --plain are given together; expected one of them.")
    return "json" if as_json else "plain" if plain else None


def spread_peers(arguments: Sequence[str]) -> list[str]:
    """Allow several addresses after one `--peers`: repeat the flag before each address except the first."""
    spread: list[str] = []
    among_peers = False
    for argument in arguments:
        if among_peers and argument.startswith("/") and spread[-1] != "--peers":
            spread.append("--peers")
        elif argument.startswith("-"):
            among_peers = argument == "--peers" or argument.startswith("--peers=")
        elif spread[-1:] != ["--peers"]:
            among_peers = False
        spread.append(argument)
    return spread


def with_choices(*, only: Iterable[str] = (), is_seed: bool = False) -> type[PlainCommand]:
    """Return a command class with flags for fields of `PeerConfig`, before the command's own flags.

    The command's function finds the values in `context.obj`: field name -> value, or None if the flag is absent.

    Args:
        only: names of the fields; empty for all fields.
        is_seed: omit the flags about training.
    """
    chosen = frozenset(only)

    class Command(PlainCommand):
        _own_params: list[Any] | None
        _params: list[Any]

        # Created on first use, because importing pydantic would take most of the time of `peer --help`.
        @property
        def params(self) -> list[Any]:
            if self._own_params is not None:
                own, self._own_params = self._own_params, None
                self._params = [*_choice_flags(chosen, is_seed), *own]
            return self._params

        @params.setter
        def params(self, own: list[Any]) -> None:
            self._own_params = own

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            rest: list[str] = super().parse_args(ctx, args)
            given = {flag.name: ctx.params.pop(flag.name) for flag in _choice_flags(chosen, is_seed)}
            ctx.ensure_object(dict).update(
                {name: None if value in ([], ()) else value for name, value in given.items()}
            )
            return rest

    return Command


def chosen_config(flags: Mapping[str, object], config_path: str | None, invite_source: str | None) -> tuple[Any, Any]:
    """Return the `PeerConfig` from flags, invite, file and defaults, and the invite, or None without an invite.

    Raises:
        UsageFault: a choice, the file or the invite is wrong.
    """
    from peer.config.peer_config import load_config

    if invite_source is None:
        return load_config(flags, config_path), None
    from peer.network.membership.invitation import read_invite, with_invite

    invite = read_invite(invite_source)
    return load_config(with_invite(flags, invite), config_path), invite


def use_invite(invite: Any, config: Any) -> None:
    """Use an invite, if there is one, for this peer's key, and create the key if it is missing.

    Raises:
        UsageFault: the invite has expired, or is for a different key.
        LocalFault: key or pass cannot be written.
    """
    if invite is not None:
        from dht.identity.keys import Identity
        from peer.network.membership.invitation import accept_invite

        accept_invite(invite, Identity.load_or_create(config.identity), config.data_dir)


@cache
def _choice_flags(only: frozenset[str], is_seed: bool) -> list[Any]:
    """Return the parameters that typer derives from a function's signature, in the order of the fields."""
    from peer.config.peer_config import ChoiceMark, PeerConfig, choices_with

    # --json and --plain choose the kind of output.
    excluded = {"output", *(choices_with(ChoiceMark.TRAINING) if is_seed else ())}

    def command(**choices: object) -> None: ...

    vars(command)["__signature__"] = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name, field))
            for name, field in PeerConfig.model_fields.items()
            if (not only or name in only) and name not in excluded
        ]
    )
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return typer.main.get_command(app).params


def _annotation(name: str, field: Any) -> Any:
    from peer.config.peer_config import Shown, flag_of
    from peer.config.validation_sentences import plain_type

    kind = plain_type(field.annotation)
    flag = flag_of(name)
    if kind is bool:
        flag += flag.replace("--", "/--no-", 1)
    usual = None if kind is bool else "N" if kind in (int, float) else "WORD"
    metavar = next((rule.metavar for rule in field.metadata if isinstance(rule, Shown)), usual)
    python_type: Any = list[str] if kind is tuple else kind if kind in (bool, int, float) else str
    return Annotated[python_type | None, typer.Option(flag, metavar=metavar, help=_help(field))]


def _help(field: Any) -> str:
    text, default = field.description[0].upper() + field.description[1:], field.default
    if isinstance(default, bool):
        text += f"; default: {'yes' if default else 'no'}"
    elif isinstance(default, int | float):
        text += f"; default {default:g}"
    elif isinstance(default, str) and default:
        text += f"; default {default}"
    return f"{text}."
