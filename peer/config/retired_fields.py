"""Fields of a run file that went, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

RETIRED_FIELDS: Mapping[str, str] = {}
"""By the field's name with its section, such as `data.image_size`: what the owner does instead, as an imperative."""
