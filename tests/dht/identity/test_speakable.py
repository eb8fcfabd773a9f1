"""Names that people can say."""

from __future__ import annotations

import re
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dht.identity.keys import peer_id_of
from dht.identity.speakable import ADJECTIVES, BIRDS, speakable_name

GOLDEN = {
    0: "deft-curlew 43",
    1: "free-drongo 38",
    92: "able-chickadee 89",
}
"""Of keys of 32 equal bytes: what is written here was seen on pages and in panels, so it never changes."""


def test_a_key_keeps_its_name() -> None:
    assert {byte: speakable_name(peer_id_of(bytes([byte]) * 32)) for byte in GOLDEN} == GOLDEN


@given(st.text())
def test_any_text_gets_an_adjective_a_bird_and_two_digits(peer_id: str) -> None:
    assert re.fullmatch(r"[a-z]{3,10}-[a-z]{3,11} [0-9]{2}", speakable_name(peer_id))


def test_text_that_no_encoding_knows_gets_one_too() -> None:
    assert speakable_name("\udc80") != speakable_name("\udc81")


def test_lists_are_powers_of_two_in_order_so_that_all_names_are_equally_likely() -> None:
    for words in (ADJECTIVES, BIRDS):
        assert len(words) == 128
        assert list(words) == sorted(set(words))


def test_names_spread_over_both_lists_and_the_numbers() -> None:
    names = [speakable_name(peer_id_of(number.to_bytes(32, "big"))) for number in range(5000)]
    assert len(set(names)) > 4950
    for part in (0, 1, 2):
        counts = Counter(re.split("[- ]", name)[part] for name in names)
        assert max(counts.values()) < 100
