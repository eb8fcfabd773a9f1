"""The `peer` command: arguments in, exit code out.

Each command imports its own slow libraries (torch, hivemind, aiohttp, pydantic), so that a mistyped flag fails at once.
Only the file of the given command is imported; `peer --help` does not even import typer.

Exit codes:

- 0: success
- 1: a problem on this machine, or a bug
- 2: an invalid flag, file or value
- 3: no member reachable; retrying may help
- 4: the run is incompatible with this machine or has ended; retrying does not help
- 5: the compute device is missing or too small
- 130: interrupted with Ctrl+C
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from peer.cli.usage.commands import COMMANDS, help_text
from peer.console.notices import say
from peer.version import software

_COMPLETION = "_PEER_COMPLETE"
"""Set by the shell when it asks for completions instead of help."""
_WORDS_ARE_NAMES = ("init", "plan", "receipts", "note")
"""Commands with a name or a file as argument, which may be called `help`."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return its exit code; prints, never raises."""
    words = _asked_for_help(list(arguments))
    if _COMPLETION not in os.environ:
        if words in ([], ["--help"], ["-h"]):
            print(help_text(), end="")
            return 0 if words else 2
        if words in (["--version"], ["-V"]):
            print(software())
            return 0
    return _run_command(words)


def _run_command(words: list[str]) -> int:
    from peer.cli.options import spread_peers
    from peer.cli.usage.lazy_commands import peer_command
    from peer.cli.usage.plain_command import UsageError, sentence_of

    try:
        code = peer_command().main(spread_peers(words), prog_name="peer", standalone_mode=False)
    except UsageError as mistake:
        say(sentence_of(mistake))
        return 2
    except SystemExit as ended:
        code = ended.code
    return code if isinstance(code, int) else int(code is not None)


def _asked_for_help(words: list[str]) -> list[str]:
    """Return `help join` and `join help` as `join --help`; return all other words unchanged."""
    if words[:1] == ["help"]:
        return [*words[1:], "--help"]
    takes_names = words[:1] == [] or words[0] not in COMMANDS or words[0] in _WORDS_ARE_NAMES
    if len(words) > 1 and words[-1] == "help" and not takes_names and not any(word[:1] == "-" for word in words):
        return [*words[:-1], "--help"]
    return words
