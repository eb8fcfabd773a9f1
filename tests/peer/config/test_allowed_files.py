"""The manifest's files, code and command: what may stand there."""

from __future__ import annotations

from typing import Any

import pytest

from averaging.wire.file_chunks import MAX_FILE_BYTES
from peer.config.allowed_files import MAX_FILES
from peer.config.manifest import RunManifest

DIGEST = "ab" * 32
COMMIT = "0123456789abcdef" * 2 + "01234567"
CUSTOM: dict[str, Any] = {
    "model": {"num_parameters": 10, "layout_digest": DIGEST},
}


def file(name: str = "tokenizer.json", num_bytes: int = 5) -> dict[str, Any]:
    return {"name": name, "bytes": num_bytes, "digest": DIGEST}


def large(name: str, num_bytes: int = MAX_FILE_BYTES) -> dict[str, Any]:
    return file(name, num_bytes)


def with_files(*files: object) -> RunManifest:
    return RunManifest.from_fields({"name": "tiny", "files": list(files)})


def test_a_manifest_with_files_is_read_back_and_is_another_run() -> None:
    plain, manifest = RunManifest(name="tiny"), with_files(file(), large("weights.safetensors"))
    assert RunManifest.from_bytes(manifest.to_bytes()) == manifest
    assert manifest.hash != plain.hash
    assert manifest.tokenizer is not None
    assert manifest.tokenizer.bytes == 5
    assert plain.tokenizer is None


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".bashrc", "a/b", "../a", "/etc/passwd", "a\\b", "a\0", "a\n", "ä", "a b", "a" * 81, "~", "C:x"],
)
def test_a_name_leads_nowhere_else(name: str) -> None:
    with pytest.raises(ValueError, match=r"files.0.name is .*; expected something like tokenizer.json"):
        with_files(file(name))


@pytest.mark.parametrize("name", ["model.py", "pytorch_model.bin", "a.PKL", "weights.pt", "x.tar.so"])
def test_no_file_is_one_that_a_library_would_run(name: str) -> None:
    with pytest.raises(ValueError, match=f"files.0.name: {name} may contain code that a library would run"):
        with_files(file(name))


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ([file("A.json"), file("a.JSON")], "files has A.json and a.JSON; expected names that differ in more"),
        ([file(str(index)) for index in range(MAX_FILES + 1)], "files has 17 entries; expected at most 16"),
        ([large(str(index)) for index in range(5)], "files has 335544320 bytes in total; expected at most 268435456"),
        ([large("a", MAX_FILE_BYTES + 1)], "files.0.bytes is 67108865; expected a whole number from 1 to 67108864"),
        ([file("a", 0)], "files.0.bytes is 0; expected a whole number from 1"),
        ([{**file(), "digest": "AB" * 32}], "files.0.digest is 'ABAB"),
        ([{**file(), "digset": "x"}], "digset is not a field in files.0; did you mean digest?"),
        ([3], "files.0 is 3; expected a list of sections with the fields name, bytes, digest."),
    ],
)
def test_wrong_files_are_refused_with_a_sentence(files: list[object], sentence: str) -> None:
    with pytest.raises(ValueError, match="files") as caught:
        with_files(*files)
    assert sentence in str(caught.value)


def test_as_many_files_as_there_may_be_fit_into_a_manifest() -> None:
    longest = [large(f"{index:080}", 16 << 20) for index in range(MAX_FILES)]
    manifest = with_files(*longest)
    assert RunManifest.from_bytes(manifest.to_bytes()) == manifest


def test_a_custom_run_says_where_its_code_is() -> None:
    code = f"https://example.org/a/b.git@{COMMIT}"
    manifest = RunManifest.from_fields({"name": "own", "code": code, **CUSTOM})
    assert RunManifest.from_bytes(manifest.to_bytes()) == manifest
    assert manifest.own_code_hint == f"its code is at {code}"
    assert RunManifest.from_fields({"name": "own", **CUSTOM}).own_code_hint == "ask the run's owner for its code"
    assert RunManifest(name="tiny").own_code_hint == ""


@pytest.mark.parametrize(
    "code",
    [
        f"http://example.org/a@{COMMIT}",
        f"javascript:alert(1)//@{COMMIT}",
        f"https://example.org@evil.example/a@{COMMIT}",
        "https://example.org/a",
        "https://example.org/a@main",
        f"https://example.org/\u202ea@{COMMIT}",
        f"https://exämple.org/a@{COMMIT}",
        f"https://{'a' * 300}@{COMMIT}",
    ],
)
def test_code_is_an_address_at_a_commit(code: str) -> None:
    with pytest.raises(ValueError, match=r"^code is .*; expected something like"):
        RunManifest.from_fields({"name": "own", "code": code, **CUSTOM})


def test_what_peer_join_trains_names_no_code() -> None:
    with pytest.raises(ValueError, match="code is given, but the model is not a custom module"):
        RunManifest.from_fields({"name": "tiny", "code": f"https://example.org/a@{COMMIT}"})
