"""A stranger's config takes no memory of the process that looks at its run: a child with limits builds it first."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from dht.ground.errors import DeviceFault, Incompatible
from peer.config.hf_config import canonical_config
from peer.config.manifest import RunManifest
from peer.limited_child.limited_child import ChildLimits
from peer.memory import architecture_sizes
from peer.memory.architecture_sizes import ArchitectureSizes, TensorSize, checked_sizes, sizes_of
from peer.memory.least_memory import check_memory, least_memory_bytes
from peer.trainer.hf import architecture
from peer.trainer.hf.architecture import build_architecture, config_of
from tests.kit.trainer.shared_sizes import OWN_CHILD

ROOT = Path(__file__).parents[3]
SMALL = {"model_type": "gpt2", "vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
BOMB = {**SMALL, "num_labels": 10**9}


@pytest.fixture(autouse=True)
def _nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    sizes_of.cache_clear()


def manifest_of(config: dict[str, Any], num_parameters: int = 100, **model: Any) -> RunManifest:
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    described = {"config": text, "layout_digest": "ab" * 32}
    described |= {"num_parameters": num_parameters, "vocab_size": 128, "context": 8, **model}
    return RunManifest.from_fields({"name": "tiny", "model": described})


def test_a_config_that_takes_all_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ChildLimits(memory_bytes=500_000_000, seconds=60)
    monkeypatch.setattr(architecture_sizes, "LIMITS", small)
    monkeypatch.setattr(architecture_sizes, "LimitedChild", OWN_CHILD)
    sentence = r"reads the model's config took more than 500 MB of memory; expected an answer within 500 MB and 60 s"
    with pytest.raises(Incompatible, match=sentence):
        check_memory(manifest_of(BOMB), "read", None)


def test_no_way_to_the_library_leads_past_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    text = canonical_config(BOMB)

    def refuse(*asked: Any) -> None:
        raise Incompatible(f"measured {asked == (text, 'causal-lm')}")

    monkeypatch.setattr(architecture, "sizes_of", refuse)
    for look in (config_of, build_architecture):
        with pytest.raises(Incompatible, match="measured True"):
            look(text, "causal-lm")
    texts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "peer").rglob("*.py")}
    users = {name for name, text in texts.items() if "library_config" in text or "library_module(" in text}
    assert users == {"library_modules.py", "architecture.py", "sizes_child.py", "trial_child.py"}


def test_buffers_count_whether_they_are_saved_or_not() -> None:
    """GPT-J keeps a table of positions that no file has."""
    config = {"model_type": "gptj", "n_embd": 32, "n_layer": 1, "n_head": 2, "rotary_dim": 16, "vocab_size": 128}
    manifest = manifest_of({**config, "n_positions": 2 * 10**9})
    sizes = sizes_of(*manifest.model.described)
    assert sizes.buffer_bytes >= 16 * 4 * 2 * 10**9
    # It is put together from sines and cosines, which are there beside it.
    assert sizes.peak_bytes >= 2 * sizes.buffer_bytes
    for use in ("read", "train", "train on a GPU"):
        with pytest.raises(DeviceFault, match=r"takes at least 3.. GB of memory here, but 64.0 GB are free"):
            check_memory(manifest, use, 64 * 10**9)  # type: ignore[arg-type]
    check_memory(manifest, "serve", 64 * 10**9)


def test_what_a_manifest_leaves_out_of_its_parameters_counts() -> None:
    """A run with frozen parts names the trained ones alone."""
    config = {**SMALL, "vocab_size": 10**9}
    manifest = manifest_of(config, 100, frozen=["transformer.wte"])
    with pytest.raises(DeviceFault, match=r"takes at least \d+ GB"):
        check_memory(manifest, "read", 16 * 10**9)


def test_tensors_that_a_module_keeps_to_itself_and_those_of_its_making_count() -> None:
    sizes = ArchitectureSizes(buffers=(TensorSize("table", (10, 10), 2),), other_bytes=10**6)
    manifest = manifest_of(SMALL)
    peak = least_memory_bytes(manifest, "read", sizes=ArchitectureSizes(peak_bytes=10**9))
    assert peak == 10**9
    without = least_memory_bytes(manifest, "read", sizes=ArchitectureSizes())
    assert least_memory_bytes(manifest, "read", sizes=sizes) == without + 10**6 + 200


def test_a_child_is_started_once_for_each_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = canonical_config(SMALL)
    first = sizes_of(text, "causal-lm")
    assert first.parameters[0] == TensorSize("transformer.wte.weight", (128, 32), 4)
    (kept,) = (tmp_path / "murmuration" / "architectures").iterdir()
    sizes_of.cache_clear()
    monkeypatch.setattr(architecture_sizes, "LimitedChild", None)
    assert sizes_of(text, "causal-lm") == first
    monkeypatch.undo()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for damaged in (b"", b"{}", b"[" * 10_000, kept.read_bytes()[:-9], b'{"parameters":[["a",[-1],4]]}'):
        kept.write_bytes(damaged)
        sizes_of.cache_clear()
        assert sizes_of(text, "causal-lm") == first
    monkeypatch.setattr(architecture_sizes, "full_version", lambda: "9.9.9")
    sizes_of.cache_clear()
    sizes_of(text, "causal-lm")
    assert len(list(kept.parent.iterdir())) == 2
    monkeypatch.setattr(architecture_sizes, "MAX_KEPT", 2)
    sizes_of.cache_clear()
    sizes_of(text, None)
    assert len(list(kept.parent.iterdir())) == 2
    assert not kept.exists()


class OrderedChild:
    """Notes when it begins and when its parent waits for it."""

    def __init__(self, order: list[str]) -> None:
        self._order = order

    def __call__(self, *arguments: Any) -> OrderedChild:
        self._order.append("begin")
        return self

    def __enter__(self) -> OrderedChild:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def start(self) -> None:
        self._order.append("wait")

    def ask(self, question: dict[str, Any]) -> Any:
        return {"parameters": [], "buffers": [], "other_bytes": 0, "peak_bytes": 0}, b""


def test_the_library_loads_here_while_the_child_loads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, they made the first start of a run as much longer as the library takes to load."""
    order: list[str] = []
    monkeypatch.setattr(architecture_sizes, "LimitedChild", OrderedChild(order))
    monkeypatch.setattr(importlib, "import_module", order.append)
    sizes_of(canonical_config(SMALL), "causal-lm")
    assert order == ["begin", "transformers.modeling_utils", "wait"]


def test_without_the_library_the_sentence_is_the_childs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ModuleNotFoundError(name)

    order: list[str] = []
    monkeypatch.setattr(architecture_sizes, "LimitedChild", OrderedChild(order))
    monkeypatch.setattr(importlib, "import_module", refuse)
    sizes_of(canonical_config(SMALL), "causal-lm")
    assert order == ["begin", "wait"]


@pytest.mark.parametrize(
    "rows",
    [
        [["a", [3], 4.0]],
        [["a", [True], 4]],
        [["a", [-3], 4]],
        [["a", [2**60], 4]],
        [["a", [1] * 9, 4]],
        [["a\x1b[31m", [3], 4]],
        [["a" * 513, [3], 4]],
        [["a", [3]]],
        [None],
        {},
    ],
)
def test_an_answer_is_checked_like_a_strangers(rows: Any) -> None:
    fields = {"parameters": [["a", [3, 2], 4]], "buffers": [], "other_bytes": 0, "peak_bytes": 24}
    assert checked_sizes(fields).parameter_bytes == 24
    for wrong in ({**fields, "parameters": rows}, {**fields, "buffers": rows}, {**fields, "peak_bytes": -1}, {}, []):
        with pytest.raises(ValueError, match=r"expected|list of at most"):
            checked_sizes(wrong)


def test_a_home_that_cannot_be_written_costs_a_child_and_no_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "murmuration").write_text("a file")
    assert sizes_of(canonical_config(SMALL), "causal-lm").parameters
