"""The manifest's model section for kind "hf", which `peer init` derives from an architecture's config. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from averaging.outer.fragment_layout import averages_few_buffers, build_layout, with_buffers
from dht.ground.quantities import count_text
from peer.config.hf_config import checked_config


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """A model of kind "hf".

    Attributes:
        config: the config text, in the form of `peer.config.hf_config`.
        task: the training task.
        shapes: (name, shape) of the trained parameters, in order.
        vocab_size: number of distinct tokens; None if the model reads no tokens.
        max_context: length of the longest sequence that the model can read; None for any length.
        init: fields of the manifest's section on pretrained weights; None if the run's seed initialises the model.
        adapter: fields of the section on an adapter; None if the whole model is trained.
        mask_token: token that replaces hidden tokens; None if the task hides no tokens.
        files: files of the tokenizer, which the run's members serve.
        buffer_shapes: (name, shape) of the saved floating-point buffers, such as running statistics, in order.
        frozen: names of parameters that are not trained; empty if all are trained, or if there is an adapter.
        notes: sentences about settings that the run's owner may want to change.
    """

    config: str
    task: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    vocab_size: int | None
    max_context: int | None
    init: Mapping[str, Any] | None = None
    adapter: Mapping[str, Any] | None = None
    mask_token: int | None = None
    files: tuple[Path, ...] = ()
    buffer_shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    frozen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """A description for people, such as "llama for causal-lm, 1.2 M parameters"."""
        num_values = sum(math.prod(shape) for _, shape in self.shapes)
        trained = "parameters" if self.adapter is None else "trained values (LoRA)"
        return f"{checked_config(self.config)['model_type']} for {self.task}, {count_text(num_values)} {trained}"

    def section(self, num_fragments: int, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the manifest's model section, including the fields of a run file (`asked`).

        Raises:
            ValueError: the run file contradicts the model or requests a longer context than the model has, or the
                model cannot be cut into `num_fragments` fragments.
        """
        layout = build_layout(list(self.shapes), num_fragments, "balanced")
        num_parameters, buffers = layout.num_values, self._buffers(layout.num_values)
        if buffers:
            layout = with_buffers(layout, self.buffer_shapes)
        given = asked.get("context")
        if isinstance(given, int) and self.max_context is not None and given > self.max_context:
            raise ValueError(f"model.context is {given}; expected at most {self.max_context}, the model's own limit")
        follows: dict[str, Any] = {
            "config": self.config,
            "num_parameters": num_parameters,
            "layout_digest": layout.digest.hex(),
        }
        if self.vocab_size is not None:
            follows["vocab_size"] = self.vocab_size
        beside = {"init": self.init, "adapter": self.adapter}
        follows |= {name: dict(section) for name, section in beside.items() if section is not None}
        follows |= buffers
        if self.frozen:
            follows["frozen"] = list(self.frozen)
        elif "frozen" in asked:
            raise ValueError("model.frozen is given; expected `peer init --freeze NAMES` instead")
        for name, value in follows.items():
            if name in asked and asked[name] != value:
                raise ValueError(
                    f"model.{name} is {_short(asked[name])}, but the model has {_short(value)}; expected the model's "
                    "value; remove it from section [model], or change the model's config.json or the flags"
                )
        mask_token = asked.get("mask_token", self.mask_token)
        if (self.task == "masked-lm") != (mask_token is not None):
            raise ValueError(
                f"task is {self.task!r} with mask_token {mask_token}; expected mask_token only with 'masked-lm'"
            )
        defaults = {"context": self.max_context, "mask_token": self.mask_token}
        return {name: value for name, value in defaults.items() if value is not None} | dict(asked) | follows

    def _buffers(self, num_parameters: int) -> dict[str, Any]:
        """Return the field on buffers. A few buffers are averaged; the buffers under an adapter are not."""
        num_values = sum(math.prod(shape) for _, shape in self.buffer_shapes)
        is_averaged = self.adapter is None and averages_few_buffers(num_values, num_parameters)
        return {"num_buffer_values": num_values} if is_averaged else {}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
