"""Commands about what a contributor says in public: profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peer.cli.arguments.options import AsJson, ContributorKey, Peers, RunId
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands

commands = Commands()
profile = Commands(
    help="Choose what is shown about you, the person behind your machines: a name, a country and a team, or nothing.",
    epilog='\b\nExample:\n  peer profile set --name "Ada" --country NL',
    no_args_is_help=True,
)
commands.add_typer(profile, name="profile")


@profile.command(short_help="Show it.", epilog="\b\nExample:\n  peer profile show")
@exits_with_sentence
def show(contributor_key: ContributorKey = None, as_json: AsJson = False) -> int:
    """Show the contributor's id and what is said about it."""
    from peer.observe.profile_show_set_hide import show_profile

    return show_profile(_path(contributor_key), as_json)


@profile.command("set", short_help="Change it.", epilog='\b\nExample:\n  peer profile set --name "Ada" --country NL')
@exits_with_sentence
def set_(
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="Shown to everybody; '' for none.")] = None,
    country: Annotated[
        str | None, typer.Option("--country", metavar="XX", help="Two letters, your own word for it; '' for none.")
    ] = None,
    team: Annotated[
        str | None, typer.Option("--team", metavar="TEXT", help="The team that you work for; '' for none.")
    ] = None,
    machine: Annotated[
        list[str] | None,
        typer.Option("--machine", metavar="PEERID", help="The machines that are yours, in place of those so far."),
    ] = None,
    contributor_key: ContributorKey = None,
    run_id: RunId = None,
    peers: Peers = None,
) -> int:
    """Change name, country, team or machines; peers that run here with this key publish it at once."""
    from peer.observe.profile_show_set_hide import set_profile

    machines = None if machine is None else tuple(machine)
    return set_profile(_path(contributor_key), name, country, team, machines, run_id, peers or [])


@profile.command(short_help="Withdraw name, country and team.", epilog="\b\nExample:\n  peer profile hide")
@exits_with_sentence
def hide(contributor_key: ContributorKey = None, run_id: RunId = None, peers: Peers = None) -> int:
    """Withdraw name, country and team everywhere; what was contributed stays, without a name."""
    from peer.observe.profile_show_set_hide import hide_profile

    return hide_profile(_path(contributor_key), run_id, peers or [])


def _path(given: str | None) -> Path:
    from peer.user_folders import contributor_key_path

    return contributor_key_path() if given is None else Path(given)
