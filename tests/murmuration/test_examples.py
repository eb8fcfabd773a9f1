"""Every example runs: a few steps each, in this process and without a network."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from dht.ground.errors import UsageFault
from tests.kit.trainer.lone_swarm import LoneSwarm, joining_alone

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))
NEEDS = {"trainer": "transformers", "lora": "peft"}
pytestmark = pytest.mark.filterwarnings("ignore")


def test_each_example_is_here() -> None:
    assert SCRIPTS == ["image_classifier", "lora", "own_loop", "trainer"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip(NEEDS.get(name, "torch"))
    monkeypatch.setattr(sys, "argv", [name, "--folder", str(tmp_path), "--steps", "4"])
    with joining_alone(monkeypatch, "murmuration.join", "murmuration.integrations.callback_session.join") as sessions:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    (swarm,) = sessions
    assert swarm.inner_steps == 4
    assert swarm.left == [None]
    assert "others join with: --run-id" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_without_the_library_a_script_ends_in_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, NEEDS[name], None)
    with pytest.raises(SystemExit, match=r"pip install (-e )?'\.\[hf\]'"):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def test_what_lora_and_the_trainer_leave_is_read_by_their_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    for name in ("lora", "trainer"):
        monkeypatch.setattr(sys, "argv", [name, "--folder", str(tmp_path / name), "--steps", "1"])
        with joining_alone(monkeypatch, "murmuration.join", "murmuration.integrations.callback_session.join"):
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert (tmp_path / "lora" / "adapter" / "adapter_model.safetensors").exists()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "trainer" / "model")
    assert model.config.model_type == "llama"


def test_the_notebook_runs_cell_by_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in codes)
    names: dict[str, Any] = {}
    sessions: list[LoneSwarm]

    class Second(LoneSwarm):
        def __enter__(self) -> Any:
            raise UsageFault("a session is open already")

    with joining_alone(monkeypatch, "murmuration.join") as sessions:
        for cell in codes:
            code = "".join(cell["source"])
            if cell is codes[-1]:
                # The cell that joins, run again: the open session can still be left.
                with monkeypatch.context() as again:
                    again.setattr("murmuration.join", lambda run_id, **given: Second(run_id, None, None, given))
                    with pytest.raises(UsageFault):
                        exec("".join(codes[2]["source"]), names)
            exec(code, names)  # our own file, as a notebook would run it
    assert sessions[0].inner_steps == 50
    assert sessions[0].left == [None]
