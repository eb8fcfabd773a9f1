"""The counts of `benchmarks.weight` agree with what the code itself knows."""

from __future__ import annotations

import ast

from averaging.wire.frames import KINDS
from benchmarks.weight import ROOT, code_lines, module_constants, weigh
from peer.config.access_sections import ChangeSection
from peer.config.allowed_files import FileSection
from peer.events.event_log import EVENT_TYPES
from tests.kit.documents import manifest_fields

SOURCE = '''"""A module."""

import os  # counts as an import

LIMIT = 3
"""A number."""


def text() -> str:
    """A text."""
    # A comment.
    return """two
lines"""
'''


def test_code_lines_leave_out_imports_docstrings_and_comments() -> None:
    assert code_lines(SOURCE) == 4
    assert module_constants(ast.parse(SOURCE)) == 1


def test_counts_are_those_of_the_code() -> None:
    counts = weigh(ROOT)
    lists = len(FileSection.model_fields) + len(ChangeSection.model_fields) - 2
    assert counts["manifest fields"] == len([*manifest_fields()]) + lists
    assert counts["event kinds"] == len(EVENT_TYPES)
    assert counts["wire kinds"] == len(KINDS)
