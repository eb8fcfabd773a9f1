"""The manifest's section on the model: its kind, its sizes, and the identity of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from dht.ground.errors import UsageFault
from peer.config.hf_config import MAX_CONFIG_BYTES, checked_config
from peer.config.section import DIGEST, Section

_OF_THE_GPT = ("num_layers", "d_model", "num_heads")
"""Fields that shape only the built-in model; a run with a config does not write these fields."""
_DESCRIBED = ("num_parameters", "layout_digest")


class InitSection(Section):
    """Pretrained weights with which the run begins. Peers do not send these weights; each volunteer needs a copy."""

    source: str = Field(
        pattern=r"^(folder|hub:[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}@[A-Za-z0-9._-]{1,96})$",
        examples=["folder", "hub:org/name@REVISION"],
        description="folder: each volunteer brings a folder with `--base`; hub:org/name@REVISION: a model of the "
        "Hugging Face hub, at a commit or tag",
    )
    digest: str = Field(
        pattern=DIGEST["pattern"],
        examples=DIGEST["examples"],
        description="BLAKE3 of names, types, shapes and bytes of all tensors; checked before training starts",
    )
    num_bytes: int = Field(ge=1, le=10**14, description="total size of all tensors, for estimates of memory and disk")

    def not_given(self) -> UsageFault:
        """Return the error for a volunteer who must bring the weights and gave no folder."""
        return UsageFault(
            f"--base is missing; expected --base DIR with this run's pretrained weights (digest {self.digest[:16]}); "
            "ask the run's owner where they are published"
        )


class AdapterSection(Section):
    """LoRA (arXiv 2106.09685): trains small matrices instead of the model's own matrices. Alpha is twice the rank."""

    rank: int = Field(
        ge=1,
        le=1024,
        description="rank of the small matrices",
    )
    targets: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]{1,80}$")], ...] = Field(
        strict=False,
        min_length=1,
        max_length=32,
        examples=['["q_proj", "v_proj"]'],
        description="names of the linear layers that get an adapter",
    )


class ModelSection(Section):
    """The model that is trained. With `config` it is of kind hf, an architecture of Hugging Face's transformers; with
    `layout_digest` alone, of kind custom, a module from your own code; otherwise of kind gpt, the built-in model.
    """

    num_layers: int = Field(default=4, ge=1, le=512, description="number of transformer blocks")
    d_model: int = Field(default=128, ge=8, le=65_536, description="width of the residual stream")
    num_heads: int = Field(
        default=4,
        ge=1,
        le=1024,
        description="number of attention heads; d_model / num_heads must be even for rotary embeddings",
    )
    vocab_size: int = Field(default=256, ge=2, le=2**22, description="number of distinct tokens; 256 for bytes")
    context: int = Field(default=128, ge=2, le=2**20, description="number of tokens per sequence")
    num_parameters: int | None = Field(
        default=None, ge=1, le=10**13, description="custom and hf only: number of trained values in the module"
    )
    layout_digest: str | None = Field(
        default=None,
        pattern=DIGEST["pattern"],
        examples=DIGEST["examples"],
        description="custom and hf only: SHA-256 of the parameters' names and shapes and of the cuts between fragments "
        "(FragmentLayout.digest)",
    )
    config: str | None = Field(
        default=None,
        max_length=MAX_CONFIG_BYTES,
        description="hf only: the architecture's config.json in canonical JSON, without any code, file or address",
    )
    mask_token: int | None = Field(
        default=None,
        ge=0,
        lt=2**22,
        description="hf only: token that replaces hidden tokens, for a masked language model; absent: the model "
        "learns to predict the next token",
    )
    init: InitSection | None = Field(
        default=None,
        description="hf only: pretrained weights to begin with; absent: the seed initialises the model",
    )
    adapter: AdapterSection | None = Field(
        default=None, description="hf only: train only an adapter, and keep the pretrained weights unchanged"
    )
    num_buffer_values: int | None = Field(
        default=None,
        ge=1,
        le=10**10,
        description="custom and hf only: number of values in the saved floating-point buffers, such as a batch norm's "
        "running statistics, which are averaged as a separate fragment; absent: each peer keeps its own buffers",
    )
    frozen: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]{1,120}$")], ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=64,
        examples=['["model.embed_tokens", "model.layers.0"]'],
        description="hf only: names of parameters that are not trained; the name of a module covers all its parameters",
    )
    frozen_digest: str | None = Field(
        default=None,
        pattern=DIGEST["pattern"],
        examples=DIGEST["examples"],
        description="custom and hf only: BLAKE3 of the parameters that are not trained; a peer with different values "
        "cannot join",
    )

    @property
    def kind(self) -> Literal["gpt", "custom", "hf"]:
        """gpt: the built-in model; custom: a module of the owner's code; hf: an architecture of transformers."""
        return "hf" if self.config is not None else "gpt" if self.layout_digest is None else "custom"

    @property
    def described(self) -> tuple[str, str]:
        """(config, task) of kind hf."""
        assert self.config is not None
        return self.config, self.task

    @property
    def task(self) -> Literal["causal-lm", "masked-lm"]:
        """The training task, which decides the architecture's head and loss."""
        return "causal-lm" if self.mask_token is None else "masked-lm"

    def _written(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self.kind == "hf":
            fields = {name: value for name, value in fields.items() if name not in _OF_THE_GPT}
        if self.kind == "custom":
            # Fields that the owner did not give, such as a context, are unknown.
            fields = {name: value for name, value in fields.items() if name in self.model_fields_set}
        return fields

    @field_validator("config")
    @classmethod
    def _check_config(cls, config: str | None) -> str | None:
        if config is not None:
            checked_config(config)
        return config

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        is_described = self.config is not None or bool(self._given(_DESCRIBED))
        if is_described and len(self._given(_DESCRIBED)) < len(_DESCRIBED):
            raise ValueError(f"the model is not the built-in model; expected both {' and '.join(_DESCRIBED)}")
        if self.kind != "hf" and (stray := self._given(("mask_token", "init", "adapter", "frozen"))):
            raise ValueError(
                f"{' and '.join(stray)} are given without config; expected them only with config, as `peer init "
                "--model` writes them"
            )
        if self.kind == "gpt" and (stray := self._given(("num_buffer_values", "frozen_digest"))):
            raise ValueError(f"{' and '.join(stray)} are given for the built-in model; expected neither; remove them")
        if self.mask_token is not None and self.mask_token >= self.vocab_size:
            raise ValueError(f"mask_token is {self.mask_token}; expected a token below vocab_size {self.vocab_size}")
        if self.adapter is not None and self.init is None:
            raise ValueError("adapter is given without init; expected init with the adapter's pretrained weights")
        if self.kind == "hf" and (set_here := [name for name in _OF_THE_GPT if name in self.model_fields_set]):
            raise ValueError(f"{', '.join(set_here)} are given together with config, which contains them; remove them")
        if self.frozen is not None and self.adapter is not None:
            raise ValueError("frozen is given with an adapter, which freezes its complete base; expected one of them")
        if self.kind == "gpt" and self.d_model % (2 * self.num_heads):
            raise ValueError(
                f"d_model is {self.d_model} with num_heads {self.num_heads}; expected d_model to be a multiple "
                f"of {2 * self.num_heads}, so that every head has an even width"
            )
        return self

    def _given(self, names: Sequence[str]) -> list[str]:
        """Return the names of those fields whose value is not the default."""
        return [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
