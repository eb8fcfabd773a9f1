"""Parameters <-> fragments: everything once, whole layers where that is possible, the same cut for everybody."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from averaging.outer.fragment_layout import build_layout

shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)


@st.composite
def models(draw):
    """(name, shape) of a module: an embedding, some layers of one to three parameters, a head."""
    layers = draw(st.lists(st.lists(shapes, min_size=1, max_size=3), max_size=8))
    named = [("embedding", draw(shapes))]
    for number, layer in enumerate(layers):
        named += [(f"blocks.{number}.part{part}", shape) for part, shape in enumerate(layer)]
    named.append(("head", draw(shapes)))
    assume(sum(math.prod(shape) for _, shape in named) > 0)
    return named


def num_elements(model):
    return sum(math.prod(shape) for _, shape in model)


@given(models(), st.integers(1, 20), st.sampled_from(["layers", "balanced"]))
def test_every_element_is_in_exactly_one_place(model, num_fragments, by):
    num_fragments = min(num_fragments, num_elements(model))
    layout = build_layout(model, num_fragments, by)
    assert [fragment.index for fragment in layout.fragments] == list(range(num_fragments))
    assert layout.num_values == sum(layout.sizes) == num_elements(model)
    seen = []
    for fragment in layout.fragments:
        position = 0
        for piece in fragment.pieces:
            assert piece.offset == position
            assert piece.length > 0
            position += piece.length
            seen += [(piece.name, piece.start + index) for index in range(piece.length)]
        assert position == fragment.num_values > 0
    assert seen == [(name, index) for name, shape in model for index in range(math.prod(shape))]


@given(models(), st.integers(1, 20))
def test_balanced_fragments_differ_by_one_at_most(model, num_fragments):
    sizes = build_layout(model, min(num_fragments, num_elements(model)), "balanced").sizes
    assert max(sizes) - min(sizes) <= 1


def layers_of(model):
    sizes: dict[str, int] = {}
    for name, shape in model:
        layer = ".".join(name.split(".")[:2])
        sizes[layer] = sizes.get(layer, 0) + math.prod(shape)
    return [size for size in sizes.values() if size]


@given(models(), st.integers(1, 6))
def test_layers_stay_whole_and_the_largest_fragment_is_as_small_as_possible(model, num_fragments):
    layers = layers_of(model)
    assume(len(layers) >= num_fragments)
    sizes = build_layout(model, num_fragments, "layers").sizes
    edges = [0, *itertools.accumulate(layers)]
    assert set(itertools.accumulate(sizes)) <= set(edges)
    best = min(
        max(sum(layers[a:b]) for a, b in itertools.pairwise([0, *cuts, len(layers)]))
        for cuts in itertools.combinations(range(1, len(layers)), num_fragments - 1)
    )
    assert max(sizes) == best


def test_more_fragments_than_layers_are_cut_evenly():
    layout = build_layout([("blocks.0.weight", (10,)), ("blocks.1.weight", (4,))], 3, "layers")
    assert layout.sizes == (4, 5, 5)


@given(models(), st.integers(1, 5), st.randoms(use_true_random=False))
def test_the_digest_says_whether_two_layouts_are_the_same(model, num_fragments, random):
    num_fragments = min(num_fragments, num_elements(model))
    layout = build_layout(model, num_fragments)
    assert build_layout(list(model), num_fragments) == layout
    shuffled = random.sample(model, len(model))
    assert (build_layout(shuffled, num_fragments).digest == layout.digest) == (shuffled == model)
    renamed = [(name + "x", shape) for name, shape in model]
    assert build_layout(renamed, num_fragments).digest != layout.digest
    if num_fragments > 1:
        assert build_layout(model, num_fragments - 1).digest != layout.digest


@pytest.mark.parametrize(
    ("model", "num_fragments", "by", "sentence"),
    [
        ([("a", (3,)), ("a", (2,))], 1, "layers", "appears twice"),
        ([("a", (3,))], 4, "layers", "num_fragments=4 does not fit 3 elements"),
        ([("a", (3,))], 0, "layers", "num_fragments=0"),
        ([], 1, "layers", "does not fit 0 elements"),
        ([("a", (3,))], 1, "halves", "by 'halves'; expected 'layers' or 'balanced'"),
    ],
)
def test_what_cannot_be_divided_is_refused(model, num_fragments, by, sentence):
    with pytest.raises(ValueError, match=sentence):
        build_layout(model, num_fragments, by)
