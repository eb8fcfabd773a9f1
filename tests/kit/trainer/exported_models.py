"""A small built-in model with parameters of its own, as anchors that were taken home."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from averaging.outer.fragment_anchor_and_residual import FragmentState
from dht.identity.keys import Identity, make_run_id
from dht.records.evaluation import Evaluation
from dht.records.signed_manifest import encode_run_record, sign_run_record
from peer.checkpoint.checkpoint import CheckpointFolder, CheckpointOwner
from peer.checkpoint.checkpoint_facts import Totals
from peer.config.averaging_rules import codec_of, rule_of
from peer.config.manifest import RunManifest
from peer.config.model_shapes import averaged_parts, layout_digest_of, layout_of, seed_sizes, trained_parameters
from peer.config.peer_config import CHECKPOINTS_NAME, RUN_RECORD_NAME
from peer.export.formats.anchors import Anchors, facts_of
from peer.trainer.model.gpt import GPT, build_model

RUN_ID = "tiny.abcdefghij234567abcd"
NOW = 1.8e9
MODEL = {"num_layers": 1, "d_model": 16, "num_heads": 2, "context": 16}
MANIFEST = RunManifest.model_validate({"name": "tiny", "seed": 3, "model": MODEL, "training": {"batch_size": 3}})


def trained_model(manifest: RunManifest = MANIFEST) -> GPT:
    """The built-in model of a run with parameters that are no initial ones."""
    model = build_model(manifest.model, manifest.seed)
    changed(model)
    return model


def changed(module: nn.Module) -> nn.Module:
    """The module with other trained parameters than before, always the same ones."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in trained_parameters(module):
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return module


def anchors_of(model: GPT, manifest: RunManifest = MANIFEST) -> Anchors:
    """The anchors that are its parameters."""
    return anchors_of_module(model, manifest)


def anchors_of_module(module: nn.Module, manifest: RunManifest) -> Anchors:
    """The anchors that are the trained parameters of any module, and its buffers where the run averages them."""
    parameters, buffers = averaged_parts(module, manifest)
    layout = layout_of(manifest, *([(name, tuple(one.shape)) for name, one in part] for part in (parameters, buffers)))
    tensors = dict([*parameters, *buffers])
    values, facts = {}, []
    for fragment in layout.fragments:
        anchor = np.zeros(fragment.num_values, dtype=np.float32)
        for piece in fragment.pieces:
            flat = tensors[piece.name].detach().view(-1)
            anchor[piece.offset : piece.offset + piece.length] = flat[piece.start : piece.start + piece.length]
        values[fragment.index] = anchor
        facts.append(facts_of(fragment.index, 7, 4321, anchor, np.zeros_like(anchor), 2))
    return Anchors(RUN_ID, manifest, tuple(facts), values, "a test", Evaluation(1.25, 28))


def data_folder(tmp_path: Path) -> tuple[str, Path, GPT]:
    """(run id, data folder of a peer with one checkpoint, the model in it)."""
    owner, model = Identity.generate(), trained_model()
    run_id = make_run_id("tiny", owner.public_key)
    folder = tmp_path / "data"
    folder.mkdir()
    record = encode_run_record(sign_run_record(run_id, MANIFEST.to_bytes(), owner))
    (folder / RUN_RECORD_NAME).write_bytes(record)
    sizes = seed_sizes(MANIFEST)
    claims = CheckpointOwner(run_id, owner.peer_id, MANIFEST.hash, layout_digest_of(MANIFEST), sizes)
    draft = CheckpointFolder(folder / CHECKPOINTS_NAME, claims, 60.0).begin()
    for index, values in sorted(anchors_of(model).values.items()):
        state = FragmentState(rule_of(MANIFEST), codec_of(MANIFEST), values, values * 2, np.zeros_like(values))
        state.version, state.lineage_tokens = 3 + index, 99
        state.refresh_digest()
        draft.add(index, state)
    draft.finish(Totals(), has_trainer=False, is_last=True)
    return run_id, folder, model
