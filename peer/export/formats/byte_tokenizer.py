"""A tokenizer whose tokens are the bytes of UTF-8, in the format of transformers and tokenizers. Pure.

Token b is byte b, as in a byte-level run. An ASCII character is a token under its own name; all other characters fall
back to their bytes, which are all 128 or more. Byte 0, which no text contains, ends and pads texts. Because its token
has the byte itself as its name, no text can contain that name by accident.
"""

from __future__ import annotations

import json
from typing import Any

NUM_BYTES = 256
END_TOKEN = 0
_END = chr(END_TOKEN)


def byte_tokenizer_files(context: int) -> dict[str, bytes]:
    """Return `tokenizer.json` and `tokenizer_config.json` for a model with a context of `context` tokens."""
    return {
        "tokenizer.json": _json(_tokenizer()),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": context,
                "clean_up_tokenization_spaces": False,
                "eos_token": _END,
                "pad_token": _END,
            }
        ),
    }


def _tokenizer() -> dict[str, Any]:
    vocabulary = {chr(byte) if byte < 128 else f"<0x{byte:02X}>": byte for byte in range(NUM_BYTES)}
    end = {"id": END_TOKEN, "content": _END, "special": True, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, indent=1).encode() + b"\n"
