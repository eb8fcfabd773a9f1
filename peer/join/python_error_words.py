"""Error sentences for a reader of Python: they name arguments of `join` instead of command line flags."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from dht.ground.errors import LocalFault
from peer.config.peer_config import PeerConfig, flag_of

_ARGUMENTS = {flag_of(name): name for name in (*PeerConfig.model_fields, "invite")}
_COMMAND_OR_FLAG = re.compile(r"`[^`]*`|--[a-z][a-z0-9-]*")


def in_python(sentence: str) -> str:
    """Return the sentence with arguments instead of flags; commands between backticks stay unchanged."""
    return _COMMAND_OR_FLAG.sub(lambda found: _ARGUMENTS.get(found[0], found[0]), sentence)


@contextlib.contextmanager
def faults_in_python() -> Iterator[None]:
    """Rewrite the sentence of each `LocalFault` that leaves the block with `in_python`."""
    try:
        yield
    except LocalFault as fault:
        told = in_python(str(fault))
        if told == str(fault):
            raise
        raise type(fault)(told) from fault
