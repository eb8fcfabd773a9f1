"""The model card, README.md beside the model: what the model is, its origin, and how to load it. Pure.

It contains only facts from the run itself. Untrusted text is escaped, so that its markup has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from dht.ground.quantities import loss_text, plural
from peer.config.manifest import RunManifest
from peer.export.formats.anchors import Anchors
from peer.export.formats.hf_architecture import base_of
from peer.version import software

MAX_CONTRIBUTORS_SHOWN = 100

_TASKS = {
    "causal-lm": ("AutoModelForCausalLM", "text-generation"),
    "masked-lm": ("AutoModelForMaskedLM", "fill-mask"),
}
"""Task of a manifest -> the class that loads a model of it, and the task under which hubs list the model."""
_SPDX = re.compile(r"[a-z][a-z0-9.-]{1,39}")
"""Matches a licence identifier as listed by hubs."""
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|&!~$])")


def model_card(anchors: Anchors, architecture: str, notes: Sequence[str] = (), *, has_tokenizer: bool) -> str:
    """Return the README.md of the folder.

    Args:
        architecture: the class of transformers that loads the folder; empty: none.
        notes: sentences that users should read before use.
    """
    manifest = anchors.manifest
    auto_class, task = _TASKS[manifest.model.task]
    repository, _, revision = base_of(manifest).partition("@")
    licence = manifest.licence.lower()
    return _TEMPLATES.get_template("model_card.md.jinja").render(
        anchors=anchors,
        manifest=manifest,
        architecture=architecture,
        is_adapter=manifest.model.adapter is not None and architecture == "PeftModel",
        has_tokenizer=has_tokenizer,
        auto_class=auto_class,
        task=task,
        spdx=licence if _SPDX.fullmatch(licence) else "",
        base=repository,
        base_place=f'"{repository}", revision="{revision}"' if repository else "BASE_FOLDER",
        loss=validation_text(anchors),
        data=manifest.data.source.replace("`", "") if _says_data(manifest) else "",
        tokens=_tokens(manifest, has_tokenizer),
        notes=notes,
        num_contributors=plural(len(anchors.contributors), "contributor"),
        most_shown=MAX_CONTRIBUTORS_SHOWN,
        software=software(),
    )


def validation_text(anchors: Anchors) -> str:
    """Return e.g. ``1.2500 nats per byte``, in the unit of the run's loss; no unit for a custom run, whose code decides
    it.
    """
    if anchors.evaluation is None:
        return "not known"
    return loss_text(anchors.evaluation.loss, anchors.manifest.loss_unit)


def _says_data(manifest: RunManifest) -> bool:
    """Return whether the manifest states the data; in a custom run, the owner's code chooses the data."""
    return manifest.model.kind != "custom"


def _tokens(manifest: RunManifest, has_tokenizer: bool) -> str:
    if not has_tokenizer:
        return (
            "The run reads tokens that each volunteer brings: its tokenizer is part of neither the run nor this folder."
        )
    if manifest.files:
        return "The tokenizer is the run's own, verified by its digest."
    return "Token n is byte n of the text in UTF-8. Byte 0, which no text contains, ends and pads texts."


def _shown(text: str) -> str:
    return _MARKUP.sub(r"\\\1", text)


_TEMPLATES: Final = Environment(
    loader=PackageLoader("peer.export.formats"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # not HTML: the filter `shown` escapes markup
)
_TEMPLATES.filters["shown"] = _shown
