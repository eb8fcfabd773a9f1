"""Every Python block of the page about own loops runs as it stands, one after the other, without a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from tests.kit.trainer.lone_swarm import joining_alone

PAGE = Path(__file__).parents[2] / "docs" / "developer" / "own-loop.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
pytestmark = pytest.mark.filterwarnings("ignore")


class Loader:
    """A stateful data loader, or a gradient scaler."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Ends:
    """Lets a documented loop take a few steps: nothing ends it on the page."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.sessions: list[Any] = []
        self._left = 3
        optimizer.register_step_post_hook(self._count)

    def _count(self, *_: object) -> None:
        self._left -= 1
        if self._left <= 0:
            self.sessions[-1].is_over = True
            self._left = 3


def test_every_block_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    Path("tokenizer.json").write_text("{}")
    shape = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**shape, num_attention_heads=1, max_position_embeddings=8)
    model: nn.Module = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(20, 4, dtype=torch.int64)
    ends = Ends(optimizer)
    names: dict[str, Any] = {
        "torch": torch,
        "CosineAnnealingLR": CosineAnnealingLR,
        "model": model,
        "optimizer": optimizer,
        "matrices": [one for one in model.parameters() if one.dim() >= 2],
        "others": [one for one in model.parameters() if one.dim() < 2],
        "loader": Loader(),
        "scaler": Loader(),
        "run_id": "stripes.aaaaaaaaaaaaaaaaaaaa",
        "address": "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWExWHrisUfVtJyPUd851AmULD4tDDrGx7nJnFUJ15sU9c",
        "dataset": tokens,
        "batch_size": 4,
        "loss_of": lambda module, rows: module(input_ids=rows, labels=rows).loss,
    }
    assert len(BLOCKS) >= 7
    places = ("murmuration.join", "murmuration.integrations.callback_session.join")
    with joining_alone(monkeypatch, *places) as ends.sessions:
        for number, block in enumerate(BLOCKS):
            names["folder"] = tmp_path / str(number)
            if "Trainer(" in block:
                names["dataset"] = [{"input_ids": row, "labels": row} for row in tokens]
                names["args"] = transformers.TrainingArguments("out", max_steps=2, report_to="none", use_cpu=True)
            exec(block, names)  # our own page
    assert len(ends.sessions) == sum("join(" in block or "SwarmCallback(" in block for block in BLOCKS)
    assert all(session.left == [None] for session in ends.sessions)
    assert (tmp_path / "out" / "model.safetensors").exists()
