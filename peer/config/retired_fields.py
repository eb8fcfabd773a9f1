"""Fields of a run file that went, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

_CLASSIFIER = "train a classifier in a loop of your own with murmuration.join (docs/developer/own-loop.md)"

RETIRED_FIELDS: Mapping[str, str] = {
    "data.image_field": _CLASSIFIER,
    "data.label_field": _CLASSIFIER,
    "model.image_size": _CLASSIFIER,
}
"""By the field's name with its section, such as `data.image_size`: what the owner does instead, as an imperative."""
