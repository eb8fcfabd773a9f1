"""What an export takes from a run's files: a tokenizer's, and nothing that is in the place of a file of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peer.config.manifest import RunManifest
from peer.export.formats.model_folder import FolderContents
from peer.export.formats.tokenizer_files import run_file_copies, tokenizer_files

DIGEST = "0" * 64
TOKENIZER = {"added_tokens": [{"id": 0, "content": "<|endoftext|>"}]}
OTHERS = (
    *("adapter_config.json", "config.json", "Config.json", "generation_config.json", "README.md", "run.json"),
    *("adapter_model.safetensors", "model.safetensors", "model-00001-of-00002.safetensors", "notes.txt"),
    *("model.safetensors.index.json", "preprocessor_config.json", "modules.json", "custom_generate.json"),
)


def run_with(folder: Path, files: dict[str, Any]) -> RunManifest:
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    listed = [{"name": name, "bytes": 10, "digest": DIGEST} for name in files]
    return RunManifest.from_fields({"name": "run", "files": listed})


@pytest.mark.parametrize("other", OTHERS)
def test_only_files_of_a_tokenizer_are_copied(tmp_path: Path, other: str) -> None:
    manifest = run_with(tmp_path, {"tokenizer.json": TOKENIZER, "merges.txt": "", other: {"by": "a stranger"}})
    assert set(tokenizer_files(manifest, tmp_path)[0]) == {"tokenizer.json", "merges.txt", "tokenizer_config.json"}
    assert set(run_file_copies(manifest, tmp_path)) == {"tokenizer.json", "merges.txt"}


def test_the_tokenizer_s_configuration_keeps_known_fields_alone(tmp_path: Path) -> None:
    config = {
        "tokenizer_class": "LlamaTokenizerFast",
        "eos_token": "<|endoftext|>",
        "chat_template": "{{ messages }}",
        "auto_map": {"AutoTokenizer": "x--y"},
        "tokenizer_file": "/home/victim/secret",
        "name_or_path": "a/b",
        "special_tokens_map_file": "/etc/passwd",
        "vocab_file": "/etc/passwd",
        "custom": 1,
    }
    manifest = run_with(tmp_path, {"tokenizer.json": TOKENIZER, "tokenizer_config.json": config})
    written = tokenizer_files(manifest, tmp_path)[0]["tokenizer_config.json"]
    assert isinstance(written, bytes)
    kept = ("tokenizer_class", "eos_token", "chat_template")
    assert json.loads(written) == {name: config[name] for name in kept}
    config["tokenizer_class"] = "../../x.Y"
    manifest = run_with(tmp_path, {"tokenizer.json": TOKENIZER, "tokenizer_config.json": config})
    written = tokenizer_files(manifest, tmp_path)[0]["tokenizer_config.json"]
    assert isinstance(written, bytes)
    assert json.loads(written)["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_no_file_takes_the_place_of_one_that_is_there(tmp_path: Path) -> None:
    def save(folder: Path, _: int) -> None:
        (folder / "config.json").write_text("ours")

    FolderContents("", save, {"config.json": b"theirs", "merges.txt": b"m"}).write(tmp_path, 1)
    assert (tmp_path / "config.json").read_text() == "ours"
    assert (tmp_path / "merges.txt").read_text() == "m"
