"""The page's static files: the bundle that `web/build.py` made or, without one, the style sheets."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

STYLES: Final = ("style.css", "panels.css", "model.css", "charts.css")
"""In the order of the bundle, see `web/src/app.css`."""
BUNDLE: Final = "bundle.json"
LICENSES: Final = "THIRD_PARTY_LICENSES.txt"
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file to serve."""

    content: bytes
    compressed: bytes
    """The content compressed with gzip."""
    content_type: str


@dataclass(frozen=True, slots=True)
class Assets:
    """Files by name. The content of a name with a hash never changes."""

    files: Mapping[str, Asset]
    style: str
    script: str
    """Empty without a bundle: the page is complete without scripts, and reloads itself every few seconds."""


def load_assets() -> Assets:
    """Read the files of this installation. Without a bundle, log the reason."""
    folder = resources.files("dashboard") / "web"
    files = {"favicon.svg": (folder / "favicon.svg").read_bytes()}
    bundle = read_bundle(folder)
    if bundle is not None:
        style, script = bundle
        for name in (style, script, LICENSES):
            files[name] = (folder / "built" / name).read_bytes()
    else:
        content = b"\n".join((folder / name).read_bytes() for name in STYLES)
        style, script = f"style-{hashlib.sha256(content).hexdigest()[:12]}.css", ""
        files[style] = content
    return Assets({name: _asset(name, content) for name, content in files.items()}, style, script)


def read_bundle(folder: Traversable) -> tuple[str, str] | None:
    """Return (style, script) of the bundle in `folder` if both exist; otherwise log the reason and return None."""
    built = folder / "built"
    try:
        bundle = json.loads((built / BUNDLE).read_text(encoding="utf-8"))
        style, script = str(bundle["style"]), str(bundle["script"])
        missing = [name for name in (style, script, LICENSES) if not (built / name).is_file()]
        reason = f"the bundle lacks {', '.join(missing)}" if missing else ""
    except (OSError, ValueError, KeyError, TypeError):
        reason = _why_not(built)
    if not reason:
        return style, script
    log.warning(
        "the page has no scripts, so it is complete but not live: %s; to build them: python dashboard/web/build.py, "
        "or install the package again with a network",
        reason,
    )
    return None


def _why_not(built: Traversable) -> str:
    try:
        return (built / "not-built.txt").read_text(encoding="utf-8").strip().rstrip(".")
    except OSError:
        return "they were never built"


def _asset(name: str, content: bytes) -> Asset:
    suffix = name[name.rindex(".") :]
    return Asset(content, gzip.compress(content, 9, mtime=0), _TYPES[suffix])
