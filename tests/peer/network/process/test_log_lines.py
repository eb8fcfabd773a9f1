"""Warnings of the network process stand among the plain lines of a peer: a time and a sentence."""

from __future__ import annotations

import logging
import re

from peer.network.process.main import LogLines


def line(name: str, message: str, *values: object) -> str:
    told = LogLines().format(logging.LogRecord(name, logging.WARNING, "file.py", 1, message, values, None))
    found = re.fullmatch(r"[0-2]\d:[0-5]\d:[0-5]\d (.*)", told)
    assert found, told
    return found[1]


def test_a_warning_of_ours_is_a_sentence_with_its_time() -> None:
    """It named a module, and no time, between lines that all have one."""
    assert line("peer.checkpoint.checkpoint", "it is not kept (%s)", "full") == "It is not kept (full)"


def test_a_warning_of_a_library_says_whose_it_is() -> None:
    level = logging.getLevelName(logging.WARNING)  # hivemind shortens it
    assert line("numpy.core", "something") == f"{level} numpy.core: something"
