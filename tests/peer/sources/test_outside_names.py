"""What a manifest may name: the table is whole, one room fetches it all, and no name leads to a file of a home."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from peer.config.manifest import RunManifest
from tests.kit.documents import ROOT, names_in, rows, section
from tests.kit.tiers import some
from tests.kit.trainer.canary_home import make_home, spellings
from tests.kit.trainer.local_hub import LocalHub
from tests.kit.trainer.prepared_data import json_lines, sentences, small_tokenizer
from tests.kit.trainer.shard_server import ShardServer, self_signed

DIGEST = "0" * 64
THREATS = (ROOT / "docs" / "contributor" / "threat-model.md").read_text(encoding="utf-8")
TABLE = section(THREATS, "External references of a manifest")
"""A row has the fields, their form, the file that fetches what they name, and so on."""
NAMES = set(names_in(TABLE))
BASE: dict[str, Any] = {
    "name": "canary",
    "model": {"vocab_size": 512},
    "data": {"source": "stdlib:"},
    "files": [{"name": "tokenizer.json", "bytes": 10, "digest": DIGEST}],
}
HF_MODEL: dict[str, Any] = {
    "config": '{"model_type":"llama"}',
    "num_parameters": 10,
    "layout_digest": DIGEST,
    "init": {"source": "folder", "digest": DIGEST, "num_bytes": 10},
}
WITH_KINDS = ("source", "page", "code")
"""Fields that take a word such as `hf:` in front."""
CHANGE: dict[str, Any] = {"at_version": 5}


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from models_in(part)


def has_text(annotation: Any) -> bool:
    if typing.get_origin(annotation) is typing.Literal:
        return False
    return annotation is str or any(map(has_text, typing.get_args(annotation)))


def fields_of_text(model: type[BaseModel] = RunManifest, prefix: str = "") -> Iterator[str]:
    """Dotted names of all fields of a manifest that hold text, in lists too."""
    for name, field in model.model_fields.items():
        inner = list(models_in(field.annotation))
        for part in inner:
            yield from fields_of_text(part, f"{prefix}{name}.")
        if not inner and has_text(field.annotation):
            yield f"{prefix}{name}"


def with_value(name: str, value: str) -> dict[str, Any]:
    """Fields of a manifest that has this value there."""
    fields: dict[str, Any] = json.loads(json.dumps(BASE))
    if name.startswith("model."):
        fields["model"] = json.loads(json.dumps(HF_MODEL))
    if name.startswith("model.adapter"):
        fields["model"]["adapter"] = {"rank": 1, "targets": ["q"]}
    if name.startswith("changes"):
        fields["changes"] = [dict(CHANGE)]
    if name == "code":
        fields["model"] = {"num_parameters": 10, "layout_digest": DIGEST}
    if name == "data.source" and value.startswith("https:"):
        fields["data"]["digest"] = DIGEST
    *sections, last = name.split(".")
    place: Any = fields
    for name_of_section in sections:
        place = place.setdefault(name_of_section, {})
        place = place[0] if isinstance(place, list) else place
    is_list = any(isinstance(one, type(place.get(last))) for one in ([], ())) or last in ("frozen", "members")
    is_list = is_list or last in ("targets", "admit", "revoke")
    place[last] = [value] if is_list else value
    return fields


@cache
def manifests(home: Path, web: str) -> list[tuple[str, str, bytes]]:
    """(field, value, manifest) of every spelling that a field lets through."""
    found = []
    for name in fields_of_text():
        for value in spellings(home, web, with_kinds=name.rpartition(".")[2] in WITH_KINDS):
            try:
                manifest = RunManifest.from_fields(with_value(name, value))
                found.append((name, value, manifest.to_bytes()))
            except ValueError:
                continue
    return found


HOME, WEB = Path("/home/victim"), "https://127.0.0.1:4433"


def test_every_field_that_could_name_something_outside_has_a_row() -> None:
    accepting = {name for name, _, _ in manifests(HOME, WEB)}
    assert set(fields_of_text()) >= NAMES
    assert accepting - NAMES == set()
    # The others hold digests, keys and versions.
    assert NAMES - accepting <= {"changes.page", "code", "model.config"}


def test_a_row_says_where_its_code_is() -> None:
    for _, _, place, *_ in rows(TABLE):
        assert place == "not fetched" or (ROOT / place.strip("`")).is_file()


CLIENTS = ("urllib.request", "http.client", "requests", "httpx", "huggingface_hub", "datasets")
ALLOWED = {
    "peer/sources/web_request.py": "the one place",
    "peer/sources/hub_files.py": "the one place",
    "peer/trainer/text/hub.py": "its endpoint alone",
    "peer/export/hub_push.py": "uploads what the volunteer exported",
}


def test_only_this_room_asks_servers() -> None:
    found = {}
    for path in (ROOT / "peer").rglob("*.py"):
        names = []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names += [f"{node.module}.{alias.name}" for alias in node.names]
        used = {client for client in CLIENTS for name in names if name == client or name.startswith(f"{client}.")}
        if used:
            found[path.relative_to(ROOT).as_posix()] = used
    assert set(found) <= set(ALLOWED), f"{set(found) - set(ALLOWED)} ask servers beside peer/sources"


def test_no_name_in_a_manifest_opens_a_file_of_the_home(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    home, folder = tmp_path / "home", tmp_path / "peer"
    make_home(home)
    (folder / "files").mkdir(parents=True)
    small_tokenizer(folder / "files")
    (tmp_path / "hub" / "org" / "name").mkdir(parents=True)
    json_lines(tmp_path / "hub" / "org" / "name" / "train.jsonl", sentences(50))
    hub = LocalHub(tmp_path / "hub")
    web = ShardServer(tmp_path / "hub", self_signed(tmp_path / "key.pem"))
    try:
        found = manifests(home, web.url.removesuffix("/meta.json"))
        others = [each for each in found if each[0] != "data.source"]
        wanted = [*(each for each in found if each[0] == "data.source"), *some(others, one_in=6)]
        orders = {
            "home": str(home),
            "folder": str(folder),
            "first": RunManifest.from_fields({"name": "canary"}).to_bytes().hex(),
            "manifests": [manifest.hex() for _, _, manifest in wanted],
        }
        path = tmp_path / "orders.json"
        path.write_text(json.dumps(orders))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))},
            "HOME": str(home),
            "HF_ENDPOINT": hub.url,
            "SSL_CERT_FILE": str(tmp_path / "key.pem"),
            "HF_TOKEN": "hf_volunteer",
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": "0",
            "PYTHONPATH": str(ROOT),
        }
        ended = subprocess.run(
            [sys.executable, "-m", "tests.kit.trainer.canary_home", str(path)],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=300,
        )
    finally:
        hub.close()
        web.close()
    assert ended.returncode == 0, ended.stderr
    opened = json.loads(ended.stdout.splitlines()[-1])
    assert opened == [], [(line, wanted[int(line.partition(":")[0])][:2]) for line in opened[:10]]
    # It asked the hub, with no login of that home, and no server of this machine.
    assert {path.split("/")[3] for path in hub.paths if path.startswith("/api/datasets/")} == {"org", "victim", "link"}
    assert any(path.endswith("train.jsonl") for path in hub.paths)
    assert all("authorization" not in head and "cookie" not in head for head in hub.heads)
    assert web.requests == []
