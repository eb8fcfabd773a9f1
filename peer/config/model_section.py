"""The manifest's section on the model: what is trained, and how its parameters are known."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from peer.config.section import Section


class ModelSection(Section):
    """The network that is trained; its fragments follow from it."""

    kind: Literal["gpt", "custom"] = Field(
        default="gpt", description="built-in GPT, or a module from the user's own code"
    )
    num_layers: int = Field(default=4, ge=1, le=512, description="transformer blocks")
    d_model: int = Field(default=128, ge=8, le=65_536, description="width of the residual stream")
    num_heads: int = Field(
        default=4, ge=1, le=1024, description="attention heads; d_model / num_heads must be even for rotary embeddings"
    )
    vocab_size: int = Field(default=256, ge=2, le=2**22, description="distinct tokens; 256 reads bytes")
    context: int = Field(default=128, ge=2, le=2**20, description="tokens per sequence")
    tied_head: bool = Field(default=True, description="share the embedding with the output head (arXiv 1608.05859)")
    num_parameters: int | None = Field(
        default=None, ge=1, le=10**13, description="custom only: trained elements of the user's module"
    )
    layout_digest: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        examples=["64 lower-case hexadecimal digits"],
        description="custom only: SHA-256 of names, shapes and cuts (FragmentLayout.digest)",
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        described = self.num_parameters is not None and self.layout_digest is not None
        if self.kind == "custom" and not described:
            raise ValueError("kind is 'custom'; expected num_parameters and layout_digest beside it")
        if self.kind == "gpt":
            if self.num_parameters is not None or self.layout_digest is not None:
                raise ValueError("kind is 'gpt'; num_parameters and layout_digest are for kind 'custom', remove them")
            if self.d_model % (2 * self.num_heads):
                raise ValueError(
                    f"d_model is {self.d_model} with num_heads {self.num_heads}; expected d_model to be a multiple "
                    f"of {2 * self.num_heads}, so that every head has an even width"
                )
        return self
