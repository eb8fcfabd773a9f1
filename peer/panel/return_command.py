"""The command that restarts a peer with the same choices, from any directory. A seed's is stored in its folder."""

from __future__ import annotations

import contextlib
import os.path
import shlex
from collections.abc import Sequence
from pathlib import Path

from dht.ground.regular_files import write_whole
from peer.config.data_source import needs_own
from peer.config.peer_config import IDENTITY_NAME, ChoiceMark, PeerConfig, choices_with, flag_of
from peer.data_folder.run_folders import COMMAND_NAME
from peer.panel.updates import LineLimits
from peer.user_folders import paths_in


def keep_command(config: PeerConfig, what: str, listening: Sequence[str]) -> None:
    """Store the command that restarts this peer at the same address in the data folder; skipped on a full disk."""
    with contextlib.suppress(OSError):
        command = same_again(_listening(config, listening), what)
        write_whole(config.data_dir / COMMAND_NAME, f"{command}\n".encode())


def same_with(config: PeerConfig, what: str, limits: LineLimits, listening: Sequence[str] = ()) -> str:
    """Return `same_again` with the current bandwidth limits, which a key can change.

    Args:
        listening: addresses with the chosen ports; empty: any free port.
    """
    changed = {"upload_limit_mbit": limits.up_mbit, "download_limit_mbit": limits.down_mbit}
    return same_again(_listening(config.model_copy(update=changed), listening), what)


def _listening(config: PeerConfig, listening: Sequence[str]) -> PeerConfig:
    return config.model_copy(update={"listen": tuple(listening)}) if listening else config


def same_again(config: PeerConfig, what: str, run: Sequence[str] = ()) -> str:
    """Return one shell-quoted line with every choice that differs from its default, with absolute paths.

    Args:
        what: the started command, e.g. "peer join".
        run: words that identify the run; empty: its id, which suffices where its addresses are known.
    """
    words = [*what.split(), *(run or (config.run_id,))]
    needless = {"run_id", *choices_with(ChoiceMark.ONCE)}
    if what != "peer join":
        needless.update(choices_with(ChoiceMark.TRAINING))
    for name, field in PeerConfig.model_fields.items():
        value = getattr(config, name)
        is_usual = name not in config.model_fields_set or value == field.default
        if name in needless or is_usual or (name == "identity" and value == config.data_dir / IDENTITY_NAME):
            continue
        flag = flag_of(name)
        if name == "output":
            words += [f"--{value}"] if value != "panel" else []  # the default on a terminal
        elif isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [word for one in values for word in (flag, _anywhere(name, one))]
    return shlex.join(words)


def _anywhere(name: str, value: object) -> str:
    """Return a value as it is typed, with paths that do not depend on the working directory."""
    if isinstance(value, Path):
        return os.path.abspath(value)
    if name == "data" and isinstance(value, str) and needs_own(value):
        kind, _, places = value.partition(":")
        return f"{kind}:{','.join(os.path.abspath(path) for path in paths_in(places))}"
    return str(value)
