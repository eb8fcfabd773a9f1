"""The rule that divides documents: nothing lost, the share kept, the same for everybody who has the document."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.trainer.text import documents as module
from peer.trainer.text.documents import Complaints, TextSegment, documents, files_of, parts_of
from peer.trainer.text.held_out import (
    SECTION_BYTES,
    HeldOutRule,
    cut_document,
    edges_of,
    edges_of_short,
    hash_fraction,
    more_held_out,
)
from tests.kit.trainer.prepared_data import book

SHAPES = {"lines": "\n", "paragraphs": "\n\n", "one line": " "}


def segments_of(path, part_bytes=1 << 20, fraction=0.05) -> list[TextSegment]:
    parts = parts_of(files_of([f"text:{path}"]), part_bytes)
    rule = HeldOutRule.of(fraction)
    return [found for part in parts for found in documents(part, "text", Complaints(), rule)]


def sides(segments: list[TextSegment]) -> tuple[str, str]:
    trained, held = ("".join(text for text, is_held, _ in segments if is_held == side) for side in (False, True))
    return trained, held


@given(
    length=st.integers(1, 5 * SECTION_BYTES),
    share=st.floats(0.001, 0.5),
)
def test_edges_are_in_order_and_keep_the_share(length, share):
    edges = edges_of(length, share)
    assert edges == sorted(edges)
    assert all(0 <= edge <= length for edge in edges)
    held = sum(stop - start for start, stop in zip(edges[::2], edges[1::2], strict=True))
    assert held == pytest.approx(length * share, abs=6)


@pytest.mark.parametrize("between", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("num_bytes", [30_000, 120_000, 560_000, 2_500_000])
def test_a_long_text_holds_out_its_share_whatever_its_lines(tmp_path, num_bytes, between):
    text = book(num_bytes, between)
    path = tmp_path / "input.txt"
    path.write_text(text)
    segments = segments_of(path)
    assert "".join(found.text for found in segments) == text
    assert [found.ends_document for found in segments] == [False] * (len(segments) - 1) + [True]
    trained, held = sides(segments)
    assert 0.03 * len(text) < len(held) < 0.07 * len(text)
    if between != " ":
        assert not set(trained.split("\n")) & set(filter(str.strip, held.split("\n")))
    # The same as one row of JSON lines.
    cut = list(cut_document(text.encode(), edges_of(len(text.encode()), 0.05)))
    assert b"".join(content for content, is_held in cut if is_held).decode() == held


@given(
    lines=st.lists(st.text(alphabet="ab é\U0001f426\n", max_size=60), min_size=1, max_size=30),
    part_bytes=st.integers(1, 200),
    share=st.floats(0.01, 0.5),
)
def test_the_sides_do_not_depend_on_the_parts(tmp_path_factory, lines, part_bytes, share):
    """Others have other files, and so other parts."""
    path = tmp_path_factory.getbasetemp() / "one.txt"
    text = "x\n" + "\n".join(lines)
    path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONG_BYTES", 0)
        patch.setattr(module, "CHUNK_BYTES", 64)
        segments = segments_of(path, part_bytes, share)
        assert [line for line in "".join(found.text for found in segments).split("\n") if line.strip()] == [
            line for line in text.split("\n") if line.strip()
        ]
        assert "\ufffd" not in "".join(found.text for found in segments)
        whole = sides(segments_of(path, 1 << 20, share))
        for mine, theirs in zip(sides(segments), whole, strict=True):
            assert "".join(mine.split()) == "".join(theirs.split())


@given(sizes=st.lists(st.integers(1, 4000), min_size=1, max_size=40), share=st.floats(0.01, 0.5))
def test_of_few_short_documents_exactly_the_share_is_held_out(sizes, share):
    texts = [(f"{index} " * size)[:size].encode() for index, size in enumerate(sizes)]
    smallest = [(hash_fraction(text), len(text)) for text in texts]
    rule = more_held_out(share, sum(sizes), reversed(smallest))
    held = 0
    for fraction, length in smallest:
        edges = edges_of_short(fraction, length, rule)
        held += edges[1] - edges[0] if edges else 0
    wanted = max(1, int(sum(sizes) * share))
    # What comes twice is on one side both times.
    assert wanted - max(smallest.count(one) for one in smallest) * 2 < held <= wanted
