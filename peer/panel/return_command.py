"""The command that brings a peer back as it was: same folder, key, addresses and data. Pure."""

from __future__ import annotations

import shlex

from peer.config.peer_config import IDENTITY_NAME, PeerConfig, flag_of

KEPT = (
    *("name", "data_dir", "identity", "contributor_key", "site", "listen", "announce", "ip_version", "port_range"),
    *("map_ports", "upload_limit_mbit", "download_limit_mbit", "serve_limit_mbit"),
)
"""Fields that say which peer it is, and how others reach it. Where members are is in its data folder."""
KEPT_OF_TRAINING = ("device", "devices", "shard", "offload", "data", "base", "base_bits")
"""Fields that a join needs beside them."""


def same_again(config: PeerConfig, what: str) -> str:
    """One line to type in the same working directory, quoted for any shell.

    Args:
        what: was started, e.g. "peer join".
    """
    words = [*what.split(), config.run_id]
    for name in (*KEPT, *(KEPT_OF_TRAINING if what == "peer join" else ())):
        value = getattr(config, name)
        is_usual = name not in config.model_fields_set or value == PeerConfig.model_fields[name].default
        if is_usual or (name == "identity" and value == config.data_dir / IDENTITY_NAME):
            continue
        flag = flag_of(name)
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [word for one in (value if isinstance(value, tuple) else (value,)) for word in (flag, str(one))]
    return shlex.join(words)
