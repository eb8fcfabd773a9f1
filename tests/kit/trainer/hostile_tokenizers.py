"""tokenizer.json files that make the `tokenizers` library panic, abort, or never end."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

NORMAL_TEXT = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab, e"


def _tenfold(letter: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": letter}, "content": letter * 10}


_PATTERN = {"Regex": "(a+)+$"}
_HOSTILE: dict[str, Callable[[], dict[str, Any]]] = {
    "allocates 8 GB": lambda: {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff" * 4).decode()}
    },
    "is cut short": lambda: {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\x01").decode()}
    },
    "panics at a word": lambda: {
        "pre_tokenizer": {"type": "Split", "pattern": _PATTERN, "behavior": "Isolated", "invert": False}
    },
    "never ends": lambda: {"normalizer": {"type": "Sequence", "normalizers": [_tenfold("e")] * 9}},
    "never ends decoding": lambda: {"decoder": {"type": "Sequence", "decoders": [_tenfold("b")] * 12}},
    "decodes to long texts": lambda: {
        "decoder": {"type": "Replace", "pattern": {"String": "b"}, "content": "b" * 100_000}
    },
    "panics decoding": lambda: {"decoder": {"type": "Replace", "pattern": _PATTERN, "content": "x"}},
}
AT_LOAD = ("allocates 8 GB", "is cut short")
AT_ENCODE = ("panics at a word", "never ends")
AT_DECODE = ("never ends decoding", "panics decoding")
LONG_TEXTS = "decodes to long texts"


def hostile_tokenizer(folder: Path, kind: str) -> Path:
    """Write one of `_HOSTILE`; every letter of `NORMAL_TEXT` is a token, and token 2 is the long word."""
    word = "a" * 40 + "b"
    fields = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": {"<|endoftext|>": 0, "a": 1, word: 2, "b": 3, "e": 4}, "merges": []},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(fields | _HOSTILE[kind]()))
    return path
