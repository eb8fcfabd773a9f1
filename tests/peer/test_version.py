"""Versions tell copies of the software apart: releases by number, clones and builds between them by commit."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

import peer.version
from peer.version import clone_commit, full_version, is_older, version_order

COMMIT = "1234567" + 33 * "8"
SCRIPT = Path(peer.version.__file__)
Config = TypeVar("Config")
PRINTS_VERSION = "from peer.version import software; print(software())"


def folder_with(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("murmuration 0.1.0", "0.2.0"),
        ("murmuration 0.1.0", "0.2.0.dev"),
        ("0.2.0.dev+g1234567", "0.2.0"),
        ("0.2.0", "murmuration 0.2.1.dev+g1234567"),
        ("0.9.0", "0.10.0"),
        ("no version", "0.0.1"),
    ],
)
def test_one_version_is_older_than_another(older: str, newer: str) -> None:
    assert is_older(older, newer)
    assert not is_older(newer, older)
    assert max([older, newer, older], key=version_order) == newer
    assert not is_older(newer, f"murmuration {newer}")


@pytest.mark.parametrize(
    "files",
    [
        {".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": f"{COMMIT}\n"},
        {".git/HEAD": f"{COMMIT}\n"},
        {
            ".git/HEAD": "ref: refs/heads/a/b\n",
            ".git/packed-refs": f"# pack-refs with: peeled\n{COMMIT} refs/heads/a/b\n",
        },
        {
            ".git": "gitdir: far/.git/worktrees/it\n",
            "far/.git/worktrees/it/HEAD": "ref: refs/heads/main\n",
            "far/.git/worktrees/it/commondir": "../..\n",
            "far/.git/refs/heads/main": COMMIT,
        },
        {".git": "gitdir: far\n", "far/HEAD": "ref: refs/heads/main", "far/refs/heads/main": COMMIT},
    ],
    ids=["branch", "detached", "packed", "work tree", "submodule"],
)
def test_a_clone_names_its_commit(files: dict[str, str | bytes], tmp_path: Path) -> None:
    assert clone_commit(str(folder_with(tmp_path, files))) == COMMIT


@pytest.mark.parametrize(
    "files",
    [
        {},
        {".git/HEAD": "ref: refs/heads/none\n"},
        {".git/HEAD": b"\xff\xfe\0"},
        {".git/HEAD": "ref: \0\n"},
        {".git/HEAD": "ref: refs/heads/main\n", ".git/packed-refs": b"\xff" + COMMIT.encode() + b" refs/heads/main\n"},
        {".git": "no address"},
        {".git": "gitdir: nowhere"},
        {".git/HEAD": "../../etc/passwd\n"},
    ],
    ids=["none", "no commit", "no text", "no path", "packed damage", "file", "lost work tree", "no digest"],
)
def test_a_folder_without_a_readable_commit_names_none(files: dict[str, str | bytes], tmp_path: Path) -> None:
    assert clone_commit(str(folder_with(tmp_path, files))) == ""


def test_this_clone_agrees_with_git() -> None:
    root = SCRIPT.parents[1]
    if not (root / ".git").exists():
        assert full_version() == peer.version.VERSION
        return
    told = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert clone_commit(str(root)) == told.stdout.strip()


def build_hook(monkeypatch: pytest.MonkeyPatch, root: Path) -> Any:
    """The hook of `hatch_build.py` for the project in `root`, without the build backend."""

    class BuildHookInterface(Generic[Config]):
        pass

    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = BuildHookInterface  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    hook = runpy.run_path(str(SCRIPT.parents[1] / "hatch_build.py"))["PackageHook"]()
    hook.root, hook.app = str(root), SimpleNamespace(display_warning=lambda text: None)
    return hook


PROJECT: dict[str, str | bytes] = {
    "averaging/codec/build_kernels.py": "class NotCompiled(Exception): pass\ndef build(): raise NotCompiled()\n",
    "dashboard/web/build.py": "class NotBuilt(Exception): pass\ndef build(): raise NotBuilt()\n",
    "peer/version.py": SCRIPT.read_bytes(),
    "peer/__init__.py": "",
}


def test_an_installed_copy_names_the_commit_that_it_was_built_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = folder_with(tmp_path / "clone", PROJECT | {".git/HEAD": f"{COMMIT}\n"})
    hook, build_data = build_hook(monkeypatch, clone), {"force_include": dict[str, str]()}
    hook.initialize("standard", build_data)
    installed = folder_with(tmp_path / "installed", PROJECT)
    for source, place in build_data["force_include"].items():
        shutil.copy(source, installed / place)
    hook.finalize("standard", build_data, "")
    assert not any(map(os.path.exists, build_data["force_include"]))
    assert printed_version(installed) == f"murmuration {peer.version.VERSION}+g1234567\n"
    # A source distribution brings the file; there is no clone to make it from.
    again = {"force_include": dict[str, str]()}
    build_hook(monkeypatch, installed).initialize("standard", again)
    assert not again["force_include"]


def test_an_editable_copy_keeps_no_commit_that_will_be_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, build_data = (
        build_hook(monkeypatch, folder_with(tmp_path, PROJECT | {".git/HEAD": COMMIT})),
        {"force_include": {}},
    )
    hook.initialize("editable", build_data)
    assert build_data["force_include"] == {}


def test_a_copy_without_any_commit_names_the_version_alone(tmp_path: Path) -> None:
    assert printed_version(folder_with(tmp_path, PROJECT)) == f"murmuration {peer.version.VERSION}\n"


def printed_version(folder: Path) -> str:
    """The version that the copy in `folder` prints where no git is installed."""
    command = [sys.executable, "-S", "-c", PRINTS_VERSION]
    environment = {"PATH": os.devnull}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout
