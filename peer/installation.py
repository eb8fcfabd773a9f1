"""The installation of this copy of the software, and the command that installs the same copy elsewhere.

PyPI has no `murmuration-swarm` yet, and anyone may register that name. So no command uses the name unless pip found
this copy in an index.
"""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from peer.import_path import DISTRIBUTION
from peer.version import VERSION

REPOSITORY_LABELS = ("repository", "source", "source code")
"""Labels of a Project-URL from which `pip install git+URL` can install the software."""


def install_command() -> str:
    """Return the command that installs this copy elsewhere; empty: it came from a folder or file of this machine."""
    try:
        found = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""  # runs from a folder
    return command_for(found.read_text("direct_url.json"), found.metadata.get_all("Project-URL") or ())


def update_command() -> str:
    """Return the command that updates this copy."""
    try:
        direct_url = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return "`git pull` in its folder"
    return update_command_for(direct_url)


def update_command_for(direct_url: str | None) -> str:
    """Return `update_command` for a copy with this `direct_url.json` (PEP 610); None: it came from an index."""
    if direct_url is None:
        return f"`pip install --upgrade {DISTRIBUTION}`"
    source: dict[str, Any] = json.loads(direct_url)
    if "vcs_info" in source and _is_for_everybody(url := str(source.get("url", ""))):
        # Otherwise pip keeps the installed copy if the version number is the same.
        address = shlex.quote(f"{source['vcs_info']['vcs']}+{url}")
        return f"`pip install --force-reinstall --no-deps {address}`"
    if "dir_info" not in source:
        return "`pip install` with a newer file"
    if source["dir_info"].get("editable"):
        return "`git pull && pip install -e .` in its folder"
    return "`git pull && pip install .` in the folder from which it was installed"


def command_for(direct_url: str | None, project_urls: Sequence[str]) -> str:
    """Return `install_command` for a copy with these metadata.

    Args:
        direct_url: text of its `direct_url.json` (PEP 610); None: pip found the copy in an index.
        project_urls: "LABEL, URL".
    """
    if direct_url is None:
        return f"pip install {DISTRIBUTION}=={VERSION}"
    source: dict[str, Any] = json.loads(direct_url)
    if _is_for_everybody(url := str(source.get("url", ""))):
        revision = source.get("vcs_info", {}).get("requested_revision")
        kind = f"{source['vcs_info']['vcs']}+" if "vcs_info" in source else ""
        return f"pip install {shlex.quote(kind + url + (f'@{revision}' if revision else ''))}"
    for label, _, url in (entry.partition(", ") for entry in project_urls):
        if label.lower() in REPOSITORY_LABELS and _is_for_everybody(url):
            return f"pip install {shlex.quote(f'git+{url}')}"
    return ""


def extra_command(extra: str) -> str:
    """Return the command that adds an optional part to this copy, such as ``hf``."""
    try:
        direct_url = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        direct_url = "{}"
    return extra_command_for(direct_url, extra)


def extra_command_for(direct_url: str | None, extra: str) -> str:
    """Return `extra_command` for a copy with this `direct_url.json`; None: it came from an index."""
    source: dict[str, Any] = {} if direct_url is None else json.loads(direct_url)
    if direct_url is None or ("dir_info" not in source and _is_for_everybody(str(source.get("url", "")))):
        return f"`{with_extra(command_for(direct_url, ()), extra)}`"
    option = "-e " if source.get("dir_info", {}).get("editable") else ""
    return f"`pip install {option}'.[{extra}]'` in the folder of Murmuration"


def with_extra(command: str, extra: str) -> str:
    """Return `command` with an optional part of this software, such as ``hf``; other commands stay unchanged."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    if len(words) != 3 or words[:2] != ["pip", "install"] or "[" in words[2]:
        return command
    what = words[2]
    if "://" in what:
        what = f"{DISTRIBUTION}[{extra}] @ {what}"
    elif what.startswith(f"{DISTRIBUTION}=="):
        what = what.replace("==", f"[{extra}]==", 1)
    elif what.startswith("./"):
        what = f"{what}[{extra}]"
    else:
        return command
    return f"pip install {shlex.quote(what)}"


def _is_for_everybody(url: str) -> bool:
    """Return whether the address is public: http or https, without a user's name or password."""
    parts = urlsplit(url)
    return parts.scheme in ("https", "http") and "@" not in parts.netloc
