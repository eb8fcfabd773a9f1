"""Sentences of a fault for a reader of Python: they name arguments of `join` where the command line has flags."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from dht.ground.errors import LocalFault
from peer.config.peer_config import PeerConfig, flag_of

_ARGUMENTS = {flag_of(name): name for name in (*PeerConfig.model_fields, "invite")}
_COMMAND_OR_FLAG = re.compile(r"`[^`]*`|--[a-z][a-z0-9-]*")


def in_python(sentence: str) -> str:
    """The sentence with arguments in place of flags; a command between backticks stays as it is typed."""
    return _COMMAND_OR_FLAG.sub(lambda found: _ARGUMENTS.get(found[0], found[0]), sentence)


@contextlib.contextmanager
def faults_in_python() -> Iterator[None]:
    """Faults of this peer leave the block with such a sentence."""
    try:
        yield
    except LocalFault as fault:
        told = in_python(str(fault))
        if told == str(fault):
            raise
        raise type(fault)(told) from fault
