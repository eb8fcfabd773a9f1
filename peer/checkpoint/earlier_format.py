"""Checkpoints of the format before the present one, so that an update of the software costs no work. Pure.

Format 3 also had contributions of rounds that were over. They are left out: the anchor has what was committed of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

EARLIER_FORMAT: Final = 3
_ONLY_THERE: Final = ("contributions", "dropped", "returned_since")


def upgraded(content: dict[str, Any], format_version: int) -> dict[str, Any]:
    """`checkpoint.json` of the earlier format as it would be in the present one; nothing in it is checked yet."""
    fragments = content.get("fragments")
    found = [_upgraded_fragment(one) for one in fragments] if isinstance(fragments, list) else fragments
    return content | {"format_version": format_version, "fragments": found}


def _upgraded_fragment(fragment: Any) -> Any:
    if not isinstance(fragment, dict) or not isinstance(contributions := fragment.get("contributions"), list):
        return fragment
    under_way = [one for one in contributions if isinstance(one, dict) and one.get("version") is None]
    kept = {name: value for name, value in fragment.items() if name not in _ONLY_THERE}
    return kept | {"contribution": _upgraded_contribution(under_way[-1]) if under_way else None}


def _upgraded_contribution(contribution: dict[str, Any]) -> dict[str, Any]:
    only_there = ("returned_since", "version", "committed")
    return {name: value for name, value in contribution.items() if name not in only_there}


def contribution_prefix(names: Collection[str]) -> str:
    """What the names of the arrays of the contribution under way begin with, among all names of a fragment's file.

    The earlier format numbered contributions; the one under way was the last.
    """
    numbered = sum(name.startswith("contribution.") and name.endswith(".scales") for name in names)
    return "contribution" if "contribution.scales" in names else f"contribution.{numbered - 1}"
