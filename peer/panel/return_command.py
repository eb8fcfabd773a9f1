"""The command that brings a peer back as it was: same folder, key, addresses and data. Pure."""

from __future__ import annotations

import shlex

from peer.config.peer_config import IDENTITY_NAME, ChoiceMark, PeerConfig, choices_with, flag_of


def same_again(config: PeerConfig, what: str) -> str:
    """One line to type in the same working directory, quoted for any shell.

    Args:
        what: was started, e.g. "peer join".
    """
    words = [*what.split(), config.run_id]
    needless = set() if what == "peer join" else set(choices_with(ChoiceMark.TRAINING))
    for name in choices_with(ChoiceMark.KEPT):
        if name in needless:
            continue
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
