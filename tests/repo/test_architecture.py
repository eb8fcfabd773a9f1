"""Rules that import-linter and ruff (pyproject.toml) cannot check: maps of rooms, loaded modules, opened files."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("dht", "averaging", "peer", "dashboard", "murmuration")
ROOMS = [
    path.parent
    for folder in (*PACKAGES, "tests/kit", "tests/simulator")
    for path in sorted((ROOT / folder).rglob("__init__.py"))
]

TRUSTED_FILES = (
    *("dht/p2pd/congestion_control.py", "peer/memory/least_memory.py", "peer/limited_child/confinement.py"),  # kernel
    *("averaging/codec/build_kernels.py", "dashboard/page/assets.py", "dashboard/web/build.py"),  # of the installation
    *("peer/installation.py", "peer/import_path.py", "peer/demo/swarm.py"),
    "dht/ground/regular_files.py",
)
"""They open files that no stranger can have put there."""


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_docstring_of_a_room_lists_what_is_in_it(room: Path) -> None:
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")), clean=False) or ""
    listed = [line.split()[0] for line in docstring.splitlines() if line.startswith("    ")]
    listed = [name for name in listed if name.endswith((".py", "/"))]
    files = [
        path.name for path in room.glob("*.py") if path.name != "__init__.py" and not path.name.startswith("test_")
    ]
    folders = {f"{path.parent.name}/" for path in room.glob("*/*.py") if path.parent.name != "node_modules"}
    assert sorted(listed) == sorted([*files, *folders])


@pytest.mark.parametrize("module", ["murmuration", "peer.cli.app"])
def test_loading_a_command_line_loads_no_large_library(module: str) -> None:
    program = f"import {module}, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert module in loaded
    assert not {"torch", "numpy", "hivemind", "aiohttp", "safetensors", "pydantic"} & set(loaded)


def opens(node: ast.AST) -> bool:
    """Whether a call reads a file by its path."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    modes = {part.value for part in node.args if isinstance(part, ast.Constant)}
    is_plain = isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords
    return name in ("read_text", "read_bytes") or (name == "open" and (is_plain or bool(modes & {"r", "rb", "rt"})))


def test_files_of_others_are_opened_as_regular_files() -> None:
    """`dht.ground.regular_files` refuses pipes and devices, on which a plain `open` would wait for ever."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in PACKAGES
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in TRUSTED_FILES and "node_modules" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and opens(node)
    ]
    assert not found
    assert opens(ast.parse("Path('x').read_bytes()", mode="eval").body)
    assert opens(ast.parse("open('x')", mode="eval").body)


@pytest.mark.parametrize("line", ["import pickle", "eval('1')", "import torch; torch.load('f')"])
def test_ruff_refuses_what_runs_code_that_is_hidden_in_bytes(line: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID251,S", "--stdin-filename", "peer/x.py", "-"]
    ran = subprocess.run(command, cwd=ROOT, input=line, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "TID251" in ran.stdout or "S307" in ran.stdout
