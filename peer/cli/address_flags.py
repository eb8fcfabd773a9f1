"""Several addresses after one `--peers`, which the library for flags does not know."""

from __future__ import annotations

from collections.abc import Sequence


def spread_peers(arguments: Sequence[str]) -> list[str]:
    """Let several addresses follow one `--peers`: repeat the flag before each address but the first.

    `peer plan` takes one file there, and a run file may follow it.
    """
    if arguments[:1] == ["plan"]:
        return list(arguments)
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
