"""Choice of the addresses that a page may show to newcomers. Pure.

A seed exists to be dialled, so its address is public; a volunteer's address is private. Only addresses given to the
dashboard are shown: it keeps dialling them, so it knows which answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from dashboard.observe.dashboard_state import DashboardState
from dht.identity.multiaddr import is_this_machine

_REPOSITORY: Final = re.compile(r"\bgit\+(https?://[^\s'\"@#]+)")
MAX_ADDRESSES: Final = 3
"""Addresses in one command: two spare ones are enough, and the command stays one line."""


@dataclass(frozen=True, slots=True)
class JoinRule:
    """The operator's choice of addresses to show.

    Attributes:
        asked: addresses that are always shown.
        shows_seeds: without `asked`, whether to show the addresses of seeds.
        is_of_one_machine: whether only this machine can open the page, so that its own addresses are useful.
        install: command with which visitors install `peer`; empty: no generally valid command is known.
    """

    asked: tuple[str, ...] = ()
    shows_seeds: bool = True
    is_of_one_machine: bool = True
    install: str = ""


def join_addresses(
    state: DashboardState, dialled: Sequence[str], faults: Collection[str], rule: JoinRule
) -> tuple[str, ...]:
    """Return the addresses to show: the configured ones, otherwise those of live seeds that answered, otherwise the
    previous ones of seeds that are still live. The address of a seed that left or is unresponsive is not shown. A seed
    publishes no record before the first trainer; until then, those that answered are shown.

    Args:
        dialled: multiaddrs of members.
        faults: multiaddrs that did not answer recently.
    """
    if rule.asked or not rule.shows_seeds:
        return rule.asked[:MAX_ADDRESSES]
    seeds = {str(row.record.peer_id) for row in state.here if row.record.role == "seed"}
    is_fresh = state.phase == "empty"
    found = [
        address
        for address in dialled
        if (is_fresh or _peer_of(address) in seeds)
        and address not in faults
        and (rule.is_of_one_machine or not is_of_this_machine(address))
    ]
    return tuple(found[:MAX_ADDRESSES]) or tuple(
        address for address in state.join_addresses if _peer_of(address) in seeds
    )


def with_later(addresses: Sequence[str], later: Sequence[str]) -> list[str]:
    """Return the multiaddrs of members with those known since. A member with a new port on its host replaces its old
    address.

    A dial to the old one would seem to succeed, because a connected peer counts as reached.
    """
    moved = {(_host(address), _peer_of(address)) for address in later}
    kept = [one for one in addresses if one in later or (_host(one), _peer_of(one)) not in moved]
    return list(dict.fromkeys([*kept, *later]))


def _host(address: str) -> str:
    return "/".join(address.split("/")[:3])


def _peer_of(address: str) -> str:
    return address.rpartition("/p2p/")[2]


def is_of_this_machine(address: str) -> bool:
    """Return whether a multiaddr begins with a loopback address, which no other machine can dial."""
    parts = address.split("/")
    return len(parts) > 2 and is_this_machine(parts[2])


def repository_of(install: str) -> str:
    """Return the web address of the repository in an install command; empty if there is none."""
    match = _REPOSITORY.search(install)
    return match[1] if match else ""
