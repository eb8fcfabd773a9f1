"""Pretrained weights under an adapter in fewer bits (`--base-bits`): the runs that allow it, and the size. Pure."""

from __future__ import annotations

from dht.ground.errors import UsageFault
from peer.config.hf_config import checked_config
from peer.config.manifest import RunManifest
from peer.config.peer_config import BaseBits

_BITS_PER_VALUE = {"8": 8.0, "4": 4.5}
"""Bits in compressed layers: with 4 bits, there is a float32 scale for each 64 values (arXiv 2305.14314)."""
_WIDTHS = ("hidden_size", "n_embd", "d_model")
"""Names of the width of an embedding in configs."""


def check_base_bits(manifest: RunManifest, base_bits: BaseBits) -> None:
    """Check that a run's weights may have fewer bits.

    Raises:
        UsageFault: the weights are trained.
    """
    if base_bits != "full" and manifest.model.adapter is None:
        raise UsageFault(
            f"--base-bits {base_bits} was given, but this run trains all of its weights; expected a run with LoRA; "
            "omit --base-bits"
        )


def base_num_bytes(manifest: RunManifest, base_bits: BaseBits = "full") -> int:
    """Return the bytes of the pretrained weights under an adapter, which a trainer keeps and does not train.

    With fewer bits the result is an estimate, because bitsandbytes does not compress embeddings and the output head.
    """
    section = manifest.model
    if section.adapter is None or section.init is None:
        return 0
    if base_bits == "full" or section.config is None:
        return section.init.num_bytes
    config = checked_config(section.config)
    value_bytes = 2 if config.get("dtype") in ("bfloat16", "float16") else 4
    width = next((config[name] for name in _WIDTHS if isinstance(config.get(name), int)), 0)
    has_own_head = config.get("tie_word_embeddings") is False
    kept = min(section.init.num_bytes, (1 + has_own_head) * section.vocab_size * width * value_bytes)
    num_compressed = (section.init.num_bytes - kept) // value_bytes
    return kept + int(num_compressed * _BITS_PER_VALUE[base_bits] / 8)
