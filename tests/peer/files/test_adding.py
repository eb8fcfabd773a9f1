"""`peer init --file`: the owner's copies, what the manifest says of them, and what is wrong with some files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from torch import nn

from averaging.wire.file_chunks import FILE_CHUNK_BYTES, MAX_FILE_BYTES
from dht.ground.errors import LocalFault, UsageFault
from peer.files import adding
from peer.files.checked_folder import checked_folder, files_folder, missing_files, run_file_path
from peer.owner.new_run import create_custom_run, create_run

LARGE = bytes(range(256)) * 4096 * 2 + b"end"


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    tokenizer, weights = tmp_path / "tokenizer.json", tmp_path / "weights.safetensors"
    tokenizer.write_text("{}")
    weights.write_bytes(LARGE)
    return [tokenizer, weights]


def test_a_run_is_made_with_copies_of_its_files(tmp_path: Path, paths: list[Path]) -> None:
    run = create_run("tiny", None, tmp_path / "owner", files=paths)
    tokenizer, weights = run.manifest.files
    assert (tokenizer.name, tokenizer.bytes) == ("tokenizer.json", 2)
    assert tokenizer.digest == blake3(b"{}").hexdigest()
    parts = [LARGE[start : start + FILE_CHUNK_BYTES] for start in range(0, len(LARGE), FILE_CHUNK_BYTES)]
    assert weights.digest == blake3(b"".join(blake3(part).digest() for part in parts)).hexdigest()
    for path in paths:
        path.unlink()
    assert run_file_path(run.folder, run.manifest, "weights.safetensors").read_bytes() == LARGE
    folder = checked_folder(run.folder, run.manifest)
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.json", "weights.safetensors"]
    assert missing_files(run.folder, run.manifest) == []


def test_what_changed_on_the_disk_is_not_used(tmp_path: Path, paths: list[Path]) -> None:
    run = create_run("tiny", None, tmp_path / "owner", files=paths)
    path = files_folder(run.folder, run.manifest) / "weights.safetensors"
    path.write_bytes(LARGE[:-1] + b"!")
    with pytest.raises(
        LocalFault, match=r"weights.safetensors is a different file: it does not match its digest; expected the file"
    ):
        run_file_path(run.folder, run.manifest, "weights.safetensors")
    path.write_bytes(LARGE[:-1])
    with pytest.raises(LocalFault, match=f"has {len(LARGE) - 1} bytes, not {len(LARGE)}"):
        checked_folder(run.folder, run.manifest)
    path.unlink()
    os.mkfifo(path)
    assert [file.name for file in missing_files(run.folder, run.manifest)] == ["weights.safetensors"]
    with pytest.raises(LocalFault, match=r"the run has no file 'vocab'; expected one of its files: tokenizer.json, w"):
        run_file_path(run.folder, run.manifest, "vocab")


def test_signing_again_takes_the_files_that_are_there(tmp_path: Path, paths: list[Path]) -> None:
    first = create_run("tiny", None, tmp_path / "owner", files=paths)
    lines = [f'[[files]]\nname = "{one.name}"\nbytes = {one.bytes}\n' for one in first.manifest.files]
    digests = [f'digest = "{one.digest}"\n' for one in first.manifest.files]
    run_file = tmp_path / "run.toml"
    run_file.write_text("".join(map("".join, zip(lines, digests, strict=True))))
    again = create_run("tiny", run_file, tmp_path / "owner", replace=True)
    assert (again.manifest.files, again.manifest.revision) == (first.manifest.files, 2)
    with pytest.raises(UsageFault, match=r"the run lists the file tokenizer.json, which was not given; .* --file"):
        create_run("tiny", run_file, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_custom_run_has_files_and_code(tmp_path: Path, paths: list[Path]) -> None:
    where = {"code": f"https://example.org/a@{'0' * 40}"}
    run = create_custom_run("own", nn.Linear(2, 2), where, tmp_path / "owner", files=paths[:1])
    assert [one.name for one in run.manifest.files] == ["tokenizer.json", "layout.json"]
    assert run.manifest.code == where["code"]


def test_wrong_files_are_refused_before_a_key_is_made(tmp_path: Path, paths: list[Path]) -> None:
    empty, long, hidden, twin = (tmp_path / name for name in ("empty", "long", ".hidden", "TOKENIZER.json"))
    empty.touch()
    hidden.write_text("x")
    twin.write_text("x")
    with long.open("wb") as opened:
        opened.truncate(MAX_FILE_BYTES + 1)
    other = tmp_path / "other" / "tokenizer.json"
    other.parent.mkdir()
    other.write_text("[]")
    for given, sentence in (
        ([tmp_path / "nowhere"], "cannot be read (No such file or directory); expected a readable file"),
        ([tmp_path], "cannot be read (Is a directory); expected a readable file"),
        ([Path("/dev/zero")], "is a device, not a regular file"),
        ([empty], f"it has 0 bytes; expected 1 to {MAX_FILE_BYTES}"),
        ([long], f"it has {MAX_FILE_BYTES + 1} bytes; expected 1 to {MAX_FILE_BYTES}"),
        ([hidden], "name is '.hidden'; expected something like tokenizer.json"),
        ([paths[0], other], "the run already has a different file named tokenizer.json"),
        ([paths[0], twin], "expected names that differ in more than capitals"),
    ):
        with pytest.raises(UsageFault) as caught:
            create_run("tiny", None, tmp_path / "owner", files=given)
        assert sentence in str(caught.value)
    assert not (tmp_path / "owner").exists()


def test_a_full_disk_signs_no_run(tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(adding, "write_whole", full)
    with pytest.raises(LocalFault, match=r"No space left on device; expected .* 2 bytes of free space; no run was"):
        create_run("tiny", None, tmp_path / "owner", files=paths)
    assert not (tmp_path / "owner").exists(), "not even a key, which would stand in the way of the next try"


@pytest.mark.parametrize("name", ["owner.key", "run.record"])
@pytest.mark.parametrize("is_there", [False, True], ids=["a new folder", "a folder of before"])
def test_a_disk_that_gets_full_leaves_nothing_of_a_run(
    name: str, is_there: bool, tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "some" / "owner"
    if is_there:
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("keep")
    sync, opened = os.fsync, os.open
    descriptors: set[int] = set()

    def note(path: str | Path, *how: int, **beside: Any) -> int:
        descriptor = opened(path, *how, **beside)
        if name in str(path):
            descriptors.add(descriptor)
        return descriptor

    def full(descriptor: int) -> None:
        if descriptor in descriptors:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "open", note)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LocalFault, match="No space left on device"):
        create_run("tiny", None, folder, files=paths)
    left = sorted(str(path.relative_to(tmp_path / "some")) for path in (tmp_path / "some").rglob("*"))
    assert left == (["owner", "owner/notes.txt"] if is_there else [])
    assert (tmp_path / "some").exists() is is_there
