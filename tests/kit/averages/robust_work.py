"""Work of honest peers and of liars for robust combinations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from averaging.codec.codec import make_codec
from averaging.outer.contribution_weights import Terms
from averaging.outer.outer_settings import OuterRule
from averaging.outer.robust_mean import combine

MEAN = OuterRule("sync", 0.7, 0.5)
BLOCK = 16
FRESH = Terms(160, 10, 0)


def normal(seed, size=50, scale=1.0):
    return scale * np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def group(values, terms=None, codec_name="fp32"):
    codec = make_codec(codec_name, BLOCK)
    terms = terms or [FRESH] * len(values)
    pairs = zip(values, terms, strict=True)
    return codec, [(index, one_terms, codec.encode(one)) for index, (one, one_terms) in enumerate(pairs)]


def combined(rule, values, terms=None, codec_name="fp32"):
    codec, contributions = group(values, terms, codec_name)
    result = combine(contributions, rule, codec, values[0].size)
    assert result.values.dtype == np.float32
    return result


FREE_CLIP = replace(MEAN, combine="centered_clip")
