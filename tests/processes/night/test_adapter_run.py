"""Real peers that train an adapter of a Llama: each has the base in a folder, and only the adapter is sent and kept."""

from __future__ import annotations

import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.config.hf_config import canonical_config
from peer.trainer.hf.architecture import build_architecture
from peer.trainer.hf.manifest_from_config import describe_model
from tests.kit.processes.process_swarm import TINY_RUN, ProcessSwarm, assert_one_sentence, process_swarm

LLAMA = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
RUN = re.sub(r"(num_layers|d_model|num_heads) = \d+\n", "", TINY_RUN)


def test_peers_train_an_adapter_and_one_without_the_base_is_told(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    base = tmp_path / "base"
    module: Any = build_architecture(canonical_config(LLAMA), "causal-lm")
    module.save_pretrained(base)
    model = describe_model(base, None, (4, ("q_proj", "v_proj")))
    with process_swarm(RUN, partial(ProcessSwarm, model=model)) as swarm:
        first = swarm.start("first", "--base", str(base), has_record=True)
        first.wait_joined()
        second = swarm.start("second", "--base", str(base), peers=[first.address])
        assert second.wait_joined().num_parameters == 2 * 2 * 2 * 4 * 64
        first.wait_common_round(second.peer_id, after=first.mark())
        second.process.send_signal(signal.SIGTERM)
        assert second.wait_end() == 0
        # Nothing of the base, which takes 1.4 MB, is in a checkpoint.
        kept = [path for path in swarm.folder_of("second").rglob("checkpoint-*/*") if path.is_file()]
        assert 0 < sum(path.stat().st_size for path in kept) < 40 * 4 * model_values(swarm)
        other = tmp_path / "other"
        with torch.no_grad():
            next(module.parameters()).add_(1)
        module.save_pretrained(other)
        third = swarm.start("third", "--base", str(other), peers=[first.address])
        assert third.wait_end() == 4
        assert_one_sentence(third.stderr, "expected the run's pretrained weights", "at the revision that")


def model_values(swarm: ProcessSwarm) -> int:
    found = swarm.run.manifest.model.num_parameters
    assert found is not None
    return found
