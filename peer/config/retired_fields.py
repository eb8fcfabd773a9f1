"""Removed fields of a run file, and their replacements."""

from __future__ import annotations

from collections.abc import Mapping

_CLASSIFIER = "train a classifier in a loop of your own with murmuration.join (docs/developer/own-loop.md)"

RETIRED_FIELDS: Mapping[str, str] = {
    "averaging.audit_fraction": "remove it; with combine centered_clip members audit a quarter of the rounds",
    "averaging.block_size": "remove it; 128 values share one scale",
    "averaging.cell_by": "remove it; one kind of round serves swarms of every size",
    "averaging.cell_size": "remove it; one kind of round serves swarms of every size",
    "averaging.clip_norm_ratio": "remove it; combine centered_clip limits norms to twice the median",
    "averaging.clip_radius_ratio": "remove it; combine centered_clip pulls by one median distance at most",
    "averaging.clip_weight_ratio": "remove it; combine centered_clip limits weights to three times the median",
    "averaging.error_feedback_decay": "remove it; all of the codec's error is kept for the next send",
    "averaging.fragment_by": "remove it; the built-in model is cut by layers and others into equal parts",
    "averaging.lag_penalty": "remove it; late work weighs less by its staleness alone",
    "averaging.merge_alpha": "remove it; mode streaming blends half and half",
    "averaging.momentum_lag_penalty": "remove it; late work weighs less by its staleness alone",
    "averaging.newcomer_rounds": "remove it; a newcomer's work weighs like that of others",
    "averaging.overlap_steps": "remove it; mode streaming blends an anchor as soon as it is there",
    "averaging.overlay_gain": "remove it; mode carry keeps 0.7 of uncommitted work live",
    "averaging.own_weight": "remove it; mode eager shows own work with its share of the last commit",
    "averaging.quality_power": "remove it; tokens weigh by tokens per inner step",
    "averaging.quorum_fraction": "remove it; half of the live trainers open a round",
    "averaging.rounding": "remove it; values are rounded to the nearest code",
    "averaging.scale": "remove it; scales are bfloat16",
    "averaging.staleness_power": "remove it; work s versions late weighs 1 / (1 + s)",
    "averaging.token_power": "remove it; work weighs by its tokens",
    "averaging.trim_fraction": "remove it; combine centered_clip needs no share to be left out",
    "changes.revoke_invites": "list the serial numbers of invites in revoke",
    "command": "remove it; write how the code is started into its README, where code leads",
    "data.evaluation_batches": "remove it; the validation loss is measured on 16 batches",
    "data.held_out_fraction": "remove it; a twentieth of the text is held out, and prepared shards say their own share",
    "data.image_field": _CLASSIFIER,
    "data.label_field": _CLASSIFIER,
    "data.order": "remove it: each block of the data is read once per epoch over the swarm",
    "files.chunks": "list the files with `peer init --file`, whose digest of a long file covers its chunks",
    "goal": "write the tokens of the whole swarm into training.schedule.tokens",
    "homepage": "remove it; page is the run's address, and description may name another",
    "model.adapter.alpha": "remove it; alpha is twice the rank",
    "model.adapter.kind": "remove it; adapters are LoRA",
    "model.adapter.new_modules": "remove it; an adapter stands on whole weights (docs/organiser/hf-model.md)",
    "model.buffers": "remove it; saved buffers of real numbers are averaged unless they are more than an eighth of the "
    "parameters",
    "model.image_size": _CLASSIFIER,
    "model.task": "remove it; mask_token makes a model that fills in hidden tokens",
    "model.tied_head": "remove it; the built-in model shares its embedding with the output head",
    "network.sites": "remove it; peers name their own sites with --site",
    "picture": "remove it; the page shows the run's name alone",
    "starts_at": "remove it; start the first peer when the run shall begin",
    "training.beta1": "remove it; AdamW's decays are 0.9 and 0.95",
    "training.beta2": "remove it; AdamW's decays are 0.9 and 0.95",
    "training.grad_clip": "remove it; gradients are clipped to a norm of 1",
    "training.schedule.batch_warmup_tokens": "remove it; an inner step has accumulation_steps passes from the start",
    "training.schedule.decay_tokens": "remove it; the decay of wsd takes the last fifth of the tokens",
    "training.schedule.floor": "remove it; the rate ends at a tenth of its peak",
    "training.schedule.warmup_tokens": "set training.warmup_steps, each optimizer's own warm-up",
    "training.total_steps": "write the tokens of the whole swarm into training.schedule.tokens, with kind cosine",
    "training.weight_decay": "remove it; matrices decay by a tenth of the learning rate",
}
"""Removed field with its section, such as `data.order` -> imperative sentence on what the run's owner does instead."""
