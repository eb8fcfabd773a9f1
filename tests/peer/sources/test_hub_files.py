"""Models of a hub on this machine: closed ones, and ones that are larger than the run says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dht.ground.errors import UsageFault
from peer.trainer.hf import base_weights
from peer.trainer.hf.base_weights import MOST_COPIES, from_hub
from tests.kit.trainer.local_hub import TOKEN, LocalHub

pytest.importorskip("huggingface_hub")
NAME = "org/model@v1"
WEIGHT_BYTES = 1000


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    folder = tmp_path / "hub" / "org" / "model"
    folder.mkdir(parents=True)
    for number in range(MOST_COPIES):
        (folder / f"model-{number}.safetensors").write_bytes(bytes(WEIGHT_BYTES))
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "config.json").write_text(" " * 10_000)
    found = LocalHub(tmp_path / "hub")
    with found.asked_here(tmp_path / "cache"):
        yield found
    found.close()


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each download; the cache has nothing."""
    import huggingface_hub

    found: list[dict[str, Any]] = []

    def snapshot_download(name: str, **options: Any) -> str:
        if options["local_files_only"]:
            raise OSError(f"the cache has no {name}")
        found.append(options)
        folder = tmp_path / "models--org--model" / "snapshots" / options["revision"]
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return found


def test_a_closed_model_that_a_run_names_is_not_fetched_with_the_login(
    hub: LocalHub, downloads: list[dict[str, Any]]
) -> None:
    hub.closed = {"org/model"}
    with pytest.raises(
        UsageFault, match=r"org/model@v1 is closed .* fetched without your login; .*`hf download`\) and give --base DIR"
    ):
        from_hub(NAME, num_bytes=WEIGHT_BYTES)
    assert hub.heads
    assert all("authorization" not in head and "cookie" not in head for head in hub.heads)
    assert downloads == []
    hub.closed = set()
    from_hub(NAME, num_bytes=WEIGHT_BYTES)
    assert all("authorization" not in head for head in hub.heads)
    assert downloads[-1]["token"] is False
    hub.closed = {"org/model"}
    from_hub(NAME, is_own=True)
    assert hub.heads[-1]["authorization"] == f"Bearer {TOKEN}"
    assert downloads[-1]["token"] is None


def test_a_model_of_more_than_four_times_the_bytes_is_not_fetched(
    hub: LocalHub, downloads: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights may lie there in other types; a file that is not fetched does not count."""
    monkeypatch.setattr(base_weights, "MAX_INDEX_BYTES", len("{}"))
    with pytest.raises(UsageFault, match=r"org/model@v1 has 4.00 kB of weights on the hub; expected at most 4.00 kB"):
        from_hub(NAME, num_bytes=WEIGHT_BYTES - 1)
    assert downloads == []
    from_hub(NAME, num_bytes=WEIGHT_BYTES)
    assert downloads[-1]["allow_patterns"] == ["*.safetensors", f"*{base_weights.INDEX_NAME}"]


def test_what_is_fetched_is_the_commit_whose_sizes_were_read(hub: LocalHub, downloads: list[dict[str, Any]]) -> None:
    """A tag may move between the two; without a network the tag's name leads to the same commit."""
    folder = from_hub(NAME, num_bytes=WEIGHT_BYTES)
    (download,) = downloads
    assert len(download["revision"]) >= 40
    assert (folder.parent.parent / "refs" / "v1").read_text() == download["revision"] == folder.name
