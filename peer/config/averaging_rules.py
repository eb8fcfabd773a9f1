"""The settings of averaging that follow from a manifest: the outer rule, the codec, the limits on the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from averaging.codec.codec import Codec, make_codec
from averaging.outer.outer_settings import Mode, OuterRule
from averaging.wire.field_checks import Limits
from peer.config.manifest import RunManifest

BLOCK_SIZE = 128
"""Number of values that share a scale. A scale has 16 bits, 0.125 bits per value; smaller blocks did not converge
better."""
OUTER_MOMENTA: Mapping[Mode, float] = {"sync": 0.9, "streaming": 0.5, "eager": 0.5, "carry": 0.5}
"""Nesterov momentum (beta) of each mode: 0.9 as in DiLoCo (arXiv 2311.08105), less where commits arrive late."""
OVERLAY_GAIN = 0.7
"""Share of a peer's uncommitted work that mode carry keeps live (0.5 to 0.7 is best:
`benchmarks/log/2026-11-21-convergence.md`)."""
ROBUST_CLIP_RATIOS = (2.0, 3.0)
"""Limits of norm and weight for a robust combination, as multiples of the median. Honest norms of equal work differ by
tens of percent, and honest weights by as much as the speeds of the machines."""
ROBUST_AUDIT_FRACTION = 0.25
"""Share of the rounds in which a member recomputes a mean, for a robust combination. With 12 members or more, a round
stays within 4.25 bits per parameter in each direction."""


def rule_of(manifest: RunManifest) -> OuterRule:
    """Return the outer rule of a manifest."""
    section = manifest.averaging
    is_robust = section.combine != "mean"
    norm_ratio, weight_ratio = ROBUST_CLIP_RATIOS if is_robust else (None, None)
    return OuterRule(
        section.mode,
        section.outer_lr,
        OUTER_MOMENTA[section.mode],
        overlay_gain=OVERLAY_GAIN,
        staleness_limit=section.staleness_limit,
        sync_every=section.sync_every,
        combine=section.combine,
        clip_norm_ratio=norm_ratio,
        clip_weight_ratio=weight_ratio,
        audit_fraction=ROBUST_AUDIT_FRACTION if is_robust else 0.0,
    )


def codec_of(manifest: RunManifest) -> Codec:
    """Return the codec of a manifest."""
    return make_codec(manifest.averaging.codec, BLOCK_SIZE)


def buffer_codec_of(codec: Codec) -> Codec:
    """Return the codec of running statistics, given the codec of the parameters: fp32, which keeps every bit.

    Running statistics are few, and within a block, values of one layer may be a thousand times the values of another.
    """
    return make_codec("fp32", codec.block_size)


def codecs_of(manifest: RunManifest, num_fragments: int) -> list[Codec]:
    """Return one codec for each of `num_fragments` fragments; averaged buffers are the last fragment."""
    codecs = [codec_of(manifest)] * num_fragments
    return codecs if manifest.buffers_fragment is None else [*codecs[:-1], buffer_codec_of(codecs[-1])]


def limits_of(sizes: Sequence[int], codecs: Codec | Sequence[Codec]) -> Limits:
    """Return the limits of a remote's messages: at most one whole encoded fragment after a header.

    Args:
        codecs: one codec for each fragment, or a single codec for all fragments.
    """
    of_each = [codecs] * len(sizes) if isinstance(codecs, Codec) else codecs
    longest = max(codec.encoded_num_bytes(size) for size, codec in zip(sizes, of_each, strict=True))
    return Limits(tuple(sizes), longest)


def sent_bytes_of(manifest: RunManifest, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return, for each fragment, the size of an encoded contribution in bytes."""
    codecs = codecs_of(manifest, len(sizes))
    return tuple(codec.encoded_num_bytes(size) for size, codec in zip(sizes, codecs, strict=True))
