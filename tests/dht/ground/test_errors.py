"""What is told of an exception."""

from __future__ import annotations

import pytest

from dht.ground.errors import words_of


@pytest.mark.parametrize(
    ("error", "otherwise", "expected"),
    [
        (OSError("no route"), "the time was up", "no route"),
        (TimeoutError(), "the time was up", "the time was up"),
        (TimeoutError(), "", "TimeoutError"),
    ],
)
def test_an_exception_without_words_is_named(error: Exception, otherwise: str, expected: str) -> None:
    assert words_of(error, otherwise) == expected
