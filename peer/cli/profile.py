"""`peer profile`: shows and changes a contributor's public profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peer.cli.options import AsJson, ContributorKey, Peers, RunId
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands

app = Commands(
    help="Choose what others see about you: a name, a country and a team, or nothing.",
    epilog='\b\nExample:\n  peer profile set --name "Ada" --country NL',
    no_args_is_help=True,
)


@app.command(short_help="Show your profile.", epilog="\b\nExample:\n  peer profile show")
@exits_with_sentence
def show(contributor_key: ContributorKey = None, as_json: AsJson = False) -> int:
    """Show your contributor id and your profile."""
    from peer.observe.profile_show_set_hide import show_profile

    return show_profile(_path(contributor_key), as_json)


@app.command(
    "set", short_help="Change your profile.", epilog='\b\nExample:\n  peer profile set --name "Ada" --country NL'
)
@exits_with_sentence
def set_(
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="Your public name; '' removes it.")] = None,
    country: Annotated[
        str | None, typer.Option("--country", metavar="XX", help="Two-letter country code, not checked; '' removes it.")
    ] = None,
    team: Annotated[str | None, typer.Option("--team", metavar="TEXT", help="Your team; '' removes it.")] = None,
    machine: Annotated[
        list[str] | None,
        typer.Option("--machine", metavar="PEERID", help="Your machines; replaces the current list."),
    ] = None,
    contributor_key: ContributorKey = None,
    run_id: RunId = None,
    peers: Peers = None,
) -> int:
    """Change name, country, team or machines. Local peers with this key publish the change at once."""
    from peer.observe.profile_show_set_hide import set_profile

    machines = None if machine is None else tuple(machine)
    return set_profile(_path(contributor_key), name, country, team, machines, run_id, peers or [])


@app.command(short_help="Withdraw name, country and team.", epilog="\b\nExample:\n  peer profile hide")
@exits_with_sentence
def hide(contributor_key: ContributorKey = None, run_id: RunId = None, peers: Peers = None) -> int:
    """Withdraw name, country and team everywhere. Contributions stay, without a name."""
    from peer.observe.profile_show_set_hide import hide_profile

    return hide_profile(_path(contributor_key), run_id, peers or [])


def _path(given: str | None) -> Path:
    from peer.user_folders import contributor_key_path

    return contributor_key_path() if given is None else Path(given)
