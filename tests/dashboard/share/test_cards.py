"""Cards: any name becomes a picture."""

from __future__ import annotations

import io
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dashboard.share.card_drawing import HEIGHT, WIDTH, card_png, drawable, has_letter
from dashboard.share.card_text import Card

CARD = Card("Ada", "brave-heron 92", "starlings", "1.45 million tokens", "rank 2 of 14", [1.0, 2.0, 4.0])


def test_a_card_is_a_picture_of_the_usual_size_with_the_name_on_it() -> None:
    png = card_png(CARD)
    image = Image.open(io.BytesIO(png))
    assert (image.format, image.size) == ("PNG", (WIDTH, HEIGHT))
    assert len(png) < 100_000
    assert png != card_png(Card("Jo", *(getattr(CARD, name) for name in Card.__dataclass_fields__ if name != "title")))


@given(st.text(max_size=60), st.lists(st.floats(-1e300, 1e300), max_size=5))
@settings(max_examples=5, deadline=None)
def test_any_text_and_any_curve_can_be_drawn(text: str, curve: list[float]) -> None:
    assert card_png(Card(text, "brave-heron 92", text, text, text, curve)).startswith(b"\x89PNG")


def test_a_name_that_the_font_cannot_write_gives_way_to_the_keys_own() -> None:
    assert drawable("Ada", "brave-heron 92") == "Ada"
    assert drawable("Émilie", "brave-heron 92") in ("Émilie", "Emilie")
    assert drawable("نور", "brave-heron 92") == drawable("小林", "brave-heron 92") == "brave-heron 92"
    assert drawable("", "brave-heron 92") == "brave-heron 92"
    assert drawable("Ada 🐦", "x") == "Ada ·"
    assert has_letter("A")
    assert not has_letter("小")


def test_a_value_that_is_no_number_draws_no_curve() -> None:
    for values in ([math.nan, 1.0], [math.inf, 1.0], [1.0]):
        assert card_png(Card("Ada", "x", "run", "1", "", values)) == card_png(Card("Ada", "x", "run", "1", ""))
