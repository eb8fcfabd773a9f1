"""Uploads a folder to the Hugging Face Hub: `peer export --push org/name`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dht.ground.errors import LocalFault, UsageFault
from peer.optional_libraries import needing

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_NAME_LENGTH = 96
"""The Hub's limit for organisation and name together."""


def check_push(repository: str) -> None:
    """Check the upload before any download.

    Raises:
        UsageFault: the repository name is invalid, this machine has no token, or the library is not installed.
    """
    if len(repository) > _MAX_NAME_LENGTH or not _NAME.fullmatch(repository):
        raise UsageFault(f"--push is {repository!r}; expected ORGANISATION/NAME, a name on the Hugging Face Hub.")
    if not _library().get_token():
        raise UsageFault(
            "--push found no token for the Hugging Face Hub; expected one with write access; run `hf auth login`, or "
            "set HF_TOKEN."
        )


def push_folder(folder: Path, repository: str, message: str) -> str:
    """Upload an exported folder; return its address.

    Raises:
        LocalFault: the Hub cannot be reached or refuses the upload; the folder stays where it is.
    """
    api = _library().HfApi()
    try:
        api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    except Exception as error:  # of its HTTP client, its checks and its storage, which share no base class
        said = ": ".join(map(_first_line, [error] if error.__cause__ is None else [error, error.__cause__]))
        raise LocalFault(
            f"{folder} was written, but could not be uploaded to {repository}: {said:.300}; expected a network and a "
            f"token with write access; try again with `hf upload {repository} {folder}`"
        ) from error
    return f"{api.endpoint}/{repository}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _library() -> Any:
    with needing("`peer export --push`", "huggingface_hub", "hf"):
        import huggingface_hub
    return huggingface_hub
