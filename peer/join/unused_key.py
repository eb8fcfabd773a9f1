"""What a person is told whose profile a join does not use."""

from __future__ import annotations

import shlex

from dht.errors import UsageFault
from peer.config.peer_config import PeerConfig
from peer.user_folders import contributor_key_path


def unused_key(config: PeerConfig) -> str | None:
    """What to say when this person has a profile that a join does not use; None: nothing. Nobody signs unasked."""
    try:
        path = contributor_key_path()
        if config.contributor_key is not None or not path.is_file():
            return None
    except (OSError, UsageFault):
        return None  # no home folder, no profile there
    return f"this work is not under your profile; to put it there, add {shlex.join(['--contributor-key', str(path)])}"
