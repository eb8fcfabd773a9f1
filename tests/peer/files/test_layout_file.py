"""A custom run brings names and shapes: what was trained is exported under them, and by no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from peer.files.checked_folder import checked_folder
from peer.files.layout_file import LAYOUT_NAME, layout_content, named_shapes
from peer.owner.new_run import create_custom_run, trained_parameters

Shapes = list[tuple[str, tuple[int, ...]]]


def module() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def shapes_of(made: nn.Module) -> Shapes:
    return [(name, tuple(tensor.shape)) for name, tensor in trained_parameters(made)]


def test_a_run_that_was_made_without_stays_the_same_run(tmp_path: Path) -> None:
    own = tmp_path / LAYOUT_NAME
    own.write_text("{}")
    first = create_custom_run("own", module(), None, tmp_path / "run", files=[own])
    assert named_shapes(first.manifest, checked_folder(first.folder, first.manifest)) is None
    create_custom_run("own", module(), None, tmp_path / "run", replace=True)
    again = create_custom_run("own", module(), None, tmp_path / "run", replace=True)
    assert (again.run_id, again.manifest.revision) == (first.run_id, 3)
    assert named_shapes(again.manifest, checked_folder(again.folder, again.manifest)) == (shapes_of(module()), [])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        b"{}",
        b'{"parameters": 3}',
        b'{"parameters": [["a"]]}',
        b'{"parameters": [["a", [-1]]]}',
        b'{"parameters": [["a", [true]]]}',
        b'{"parameters": [["a", [1e9]]]}',
        b'{"parameters": [[3, [1]]]}',
        b'{"parameters": []}',
        b'{"parameters": [["a", [9999999999999999999, 9999999999999999999]]]}',
        layout_content([("b", (4, 8))], []),
        layout_content([*reversed(shapes_of(module()))], []),
    ],
)
def test_anything_else_is_no_layout(tmp_path: Path, content: bytes) -> None:
    run = create_custom_run("own", module(), None, tmp_path / "run")
    folder = checked_folder(run.folder, run.manifest)
    assert named_shapes(run.manifest, folder) == (shapes_of(module()), [])
    (folder / LAYOUT_NAME).write_bytes(content)
    assert named_shapes(run.manifest, folder) is None
    assert json.loads(layout_content([], [])) == {"parameters": []}
