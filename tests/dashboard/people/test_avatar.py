"""A picture follows from the key alone, is small, and holds nothing of the key's text."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

from dashboard.people.avatar import avatar_svg


@given(st.text())
def test_any_key_has_one_small_picture(key: str) -> None:
    svg = avatar_svg(key)
    assert svg == avatar_svg(key)
    assert len(svg) < 700
    root = ElementTree.fromstring(svg)
    assert [node.tag.rpartition("}")[2] for node in root] == ["rect", "path"]


def test_keys_look_different() -> None:
    assert len({avatar_svg(f"12D3KooW{number}") for number in range(500)}) == 500
