"""`peer demo --model hf`: real processes train a Llama, and what they leave is a folder that transformers loads."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.kit.processes.process_swarm import process_swarm

DEMO_SECONDS = 600.0


def test_the_demo_takes_home_a_llama_that_speaks(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "llama"
    with process_swarm() as swarm:
        arguments = ["--model", "hf", "--out", str(out), "--peers", "2", "--minutes", "0.7", "--no-dashboard"]
        shown = swarm.call("demo", *arguments, "--json", seconds=DEMO_SECONDS)
        assert shown.returncode == 0, shown.stderr
        assert swarm.processes() == []
        again = swarm.call("demo", *arguments, seconds=60)
    assert again.returncode == 2
    assert "already exists" in again.stderr
    facts = json.loads(shown.stdout.splitlines()[-1])
    assert abs(facts["loss_first"] - math.log(1024)) < 1
    assert facts["loss_last"] < 0.85 * facts["loss_first"]
    assert facts["anchors_equal"] is True
    assert facts["text"].startswith("def ")
    model = transformers.AutoModelForCausalLM.from_pretrained(out, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, local_files_only=True)
    assert model.num_parameters() == facts["num_parameters"]
    found = model.generate(**tokenizer("import", return_tensors="pt"), max_new_tokens=4, do_sample=False)
    assert tokenizer.decode(found[0]).startswith("import")
