"""Chooses the addresses that a page may show to newcomers. Pure.

A seed is there to be dialled, so its address is public; that of a volunteer is nobody's business. Only addresses that
the dashboard itself was given are shown: it dials them again and again, so it knows whether somebody answers.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from dashboard.observe.dashboard_state import DashboardState

_REPOSITORY: Final = re.compile(r"\bgit\+(https?://[^\s'\"@#]+)")
MAX_ADDRESSES: Final = 3
"""In one command: two spare ones are enough, and a line stays a line."""


@dataclass(frozen=True, slots=True)
class JoinRule:
    """The operator's choice of addresses to show.

    Attributes:
        asked: addresses to show whatever is known of them.
        shows_seeds: without any asked for, those of seeds.
        is_of_one_machine: the page is served to this machine alone, so addresses of this machine are of use.
        install: what visitors type to get `peer`; empty: nobody knows a line that works for everybody.
    """

    asked: tuple[str, ...] = ()
    shows_seeds: bool = True
    is_of_one_machine: bool = True
    install: str = ""


def join_addresses(
    state: DashboardState, dialled: Sequence[str], faults: Collection[str], rule: JoinRule
) -> tuple[str, ...]:
    """The addresses to show: those asked for, else those of live seeds that answered, else what was shown before of
    seeds that are still live. A seed that left or is not heard is at no address. A seed says nothing of itself before
    the first trainer: until somebody has, those that answered are shown.

    Args:
        dialled: multiaddrs of members.
        faults: those of them at which nobody answered lately.
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
    """Multiaddrs of members, and those that are known since; of a member that left a port of its host, not the old one.

    A dial to the old one would seem to succeed, because a peer that is connected already counts as reached.
    """
    moved = {(_host(address), _peer_of(address)) for address in later}
    kept = [one for one in addresses if one in later or (_host(one), _peer_of(one)) not in moved]
    return list(dict.fromkeys([*kept, *later]))


def _host(address: str) -> str:
    return "/".join(address.split("/")[:3])


def _peer_of(address: str) -> str:
    return address.rpartition("/p2p/")[2]


def is_of_this_machine(address: str) -> bool:
    """Whether a multiaddr begins with a loopback address, which no other machine can dial."""
    parts = address.split("/")
    try:
        return len(parts) > 2 and ipaddress.ip_address(parts[2]).is_loopback
    except ValueError:
        return parts[2] == "localhost"


def repository_of(install: str) -> str:
    """Returns the web address of the repository that an install line names; empty if it names none."""
    match = _REPOSITORY.search(install)
    return match[1] if match else ""
